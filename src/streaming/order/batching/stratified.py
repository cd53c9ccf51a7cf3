"""`stratified`: every stream has an order of its own, and every batch holds each stream's share."""

from __future__ import annotations

from typing import Final

from streaming.order.batching.even_merge import EvenMerge
from streaming.order.batching.layout import Epoch, Layout, stream_orders


class Stratified:
    """Each stream with its own canonical nodes, merged evenly by weight, sample by sample."""

    takes_units: Final = False
    unit_goes_to_one_rank: Final = False

    def lay_out(self, epoch: Epoch) -> Layout:
        """See Batching."""
        parts = stream_orders(epoch, [epoch.n_canonical_nodes] * epoch.catalog.n_streams)
        return Layout(parts, EvenMerge(epoch.draws.tolist()), mixed=False)
