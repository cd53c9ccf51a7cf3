"""`per_stream`: every global batch is of one stream."""

from __future__ import annotations

from typing import Final

from streaming.order.batching.layout import Epoch, Layout, stream_orders
from streaming.order.batching.unit_merge import UnitMerge


class PerStream:
    """The unit is a global batch; its samples are consecutive in the order of its stream."""

    takes_units: Final = True
    unit_goes_to_one_rank: Final = False

    def lay_out(self, epoch: Epoch) -> Layout:
        """See Batching."""
        n_streams = epoch.catalog.n_streams
        parts = stream_orders(epoch, [epoch.n_canonical_nodes] * n_streams)
        merge = UnitMerge.of(epoch.draws.tolist(), epoch.unit, [1] * n_streams, epoch.seed, epoch.epoch, epoch.shuffle)
        return Layout(parts, merge, mixed=False)
