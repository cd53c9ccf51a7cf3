"""`random`: all streams share one order, and every batch takes the next positions of it."""

from __future__ import annotations

from typing import Final

import numpy as np

from streaming.order.batching.even_merge import EvenMerge
from streaming.order.batching.layout import BatchLayout, EpochSettings, SubOrderPlan, shards_of_streams


class Random:
    """When shuffling, one sub-order of all shards; otherwise one per stream, merged evenly by weight."""

    takes_units: Final = False
    unit_goes_to_one_rank: Final = False

    def lay_out(self, epoch: EpochSettings) -> BatchLayout:
        """See Batching."""
        if epoch.shuffle or epoch.catalog.n_streams < 2:
            shards = [np.arange(epoch.catalog.n_shards, dtype=np.int64)]
        else:
            shards = shards_of_streams(epoch.catalog)
        sub_orders = [SubOrderPlan(piece, epoch.n_canonical_nodes, epoch.seed, epoch.block) for piece in shards]
        return BatchLayout(sub_orders, EvenMerge(epoch.draws.tolist()) if len(sub_orders) > 1 else None, mixed=True)
