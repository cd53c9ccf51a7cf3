"""`random`: every batch holds what the common order of all streams has at its positions."""

from __future__ import annotations

from typing import Final

import numpy as np

from streaming.order.batching.even_merge import EvenMerge
from streaming.order.batching.layout import Epoch, Layout, PartPlan, shards_of_streams


class Random:
    """All shards in one order when shuffling; else each stream in its own, merged evenly by weight."""

    takes_units: Final = False
    unit_goes_to_one_rank: Final = False

    def lay_out(self, epoch: Epoch) -> Layout:
        """See Batching."""
        if epoch.shuffle or epoch.catalog.n_streams < 2:
            shards = [np.arange(epoch.catalog.n_shards, dtype=np.int64)]
        else:
            shards = shards_of_streams(epoch.catalog)
        parts = [PartPlan(piece, epoch.n_canonical_nodes, epoch.seed, epoch.block) for piece in shards]
        return Layout(parts, EvenMerge(epoch.draws.tolist()) if len(parts) > 1 else None, mixed=True)
