"""`random`: all streams share one order, and every batch takes the next positions of it."""

from __future__ import annotations

from typing import Final

import numpy as np

from streaming.order.batching.layout import BatchLayout, EpochSettings, SubOrderPlan


class Random:
    """One sub-order of all shards: shuffled together, or as stored, one stream after the other."""

    takes_units: Final = False
    unit_goes_to_one_rank: Final = False
    unit_spans_ranks: Final = False

    def lay_out(self, epoch: EpochSettings) -> BatchLayout:
        """See Batching."""
        shards = np.arange(epoch.catalog.n_shards, dtype=np.int64)
        return BatchLayout([SubOrderPlan(shards, epoch.n_canonical_nodes, epoch.seed, epoch.block)], merge=None)
