"""Shards of which a node reads so little in an epoch that it is better off without the rest of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.epoch import EpochOrder
from streaming.order.quality import drawn_by
from streaming.order.topology import Topology

MOST_SHARE: Final = 1 / 16
MOST_ROWS: Final = 500
"""Of one shard, read one by one: more requests cost more than the shard."""


def thinly_read(order: EpochOrder, topology: Topology) -> NDArray[np.bool_] | None:
    """Which shards a node needs less than a sixteenth of this epoch: bool (shard,), None if there are none.

    Only where an epoch takes a part of a stream can there be such shards: whole passes need them all, if by many nodes.
    In closed form: a node reads its canonical nodes alone, or several nodes share one evenly.
    """
    drawn = drawn_by(order)
    if not drawn.samples_any:
        return None
    n_lanes = 1 if order.effective_algorithm == "naive" else order.n_canonical_nodes
    needed = drawn.rows(order.catalog) / max(1.0, topology.n_nodes / n_lanes)
    thin = (drawn.passes == 0) & (needed > 0) & (needed < MOST_SHARE * order.catalog.shard_sizes) & (needed < MOST_ROWS)
    return thin if thin.any() else None
