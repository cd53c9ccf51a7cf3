"""`per_stream`: every global batch comes from one stream."""

from __future__ import annotations

from typing import Final

from streaming.order.batching.layout import BatchLayout, EpochSettings, sub_order_per_stream
from streaming.order.batching.unit_merge import UnitMerge


class PerStream:
    """A unit is a global batch; its samples are consecutive in the sub-order of its stream."""

    takes_units: Final = True
    unit_goes_to_one_rank: Final = False
    unit_spans_ranks: Final = True

    def lay_out(self, epoch: EpochSettings) -> BatchLayout:
        """See Batching."""
        n_streams = epoch.catalog.n_streams
        sub_orders = sub_order_per_stream(epoch, [epoch.n_canonical_nodes] * n_streams)
        merge = UnitMerge.of(epoch.draws.tolist(), epoch.unit, [1] * n_streams, epoch.seed, epoch.epoch, epoch.shuffle)
        return BatchLayout(sub_orders, merge)
