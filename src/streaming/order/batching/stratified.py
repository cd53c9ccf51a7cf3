"""`stratified`: every stream has a sub-order of its own, and every batch holds each stream's share."""

from __future__ import annotations

from typing import Final

from streaming.order.batching.even_merge import EvenMerge
from streaming.order.batching.exact_merge import ExactMerge, composition_of
from streaming.order.batching.layout import BatchLayout, EpochSettings, sub_order_per_stream


class Stratified:
    """One sub-order per stream, each with its own canonical nodes, merged evenly by weight, sample by sample."""

    takes_units: Final = False
    unit_goes_to_one_rank: Final = False
    unit_spans_ranks: Final = False

    def lay_out(self, epoch: EpochSettings) -> BatchLayout:
        """See Batching."""
        sub_orders = sub_order_per_stream(epoch, [epoch.n_canonical_nodes] * epoch.catalog.n_streams)
        return BatchLayout(sub_orders, EvenMerge(epoch.draws.tolist()))


class ExactlyStratified:
    """As Stratified, but merged by a composition of whole numbers, in which every rank's batch is dealt."""

    takes_units: Final = True
    unit_goes_to_one_rank: Final = False
    unit_spans_ranks: Final = False

    def lay_out(self, epoch: EpochSettings) -> BatchLayout:
        """See Batching."""
        draws = epoch.draws.tolist()
        merge = ExactMerge(draws, composition_of(draws, epoch.unit))
        sub_orders = sub_order_per_stream(epoch, [epoch.n_canonical_nodes] * epoch.catalog.n_streams)
        return BatchLayout(sub_orders, merge, merge.n_read)
