"""When a shard is in use: from its first sample to its last, in closed form."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.epoch import EpochOrder
from streaming.order.nodes.assignment import CanonicalNodeSets
from streaming.order.sub_orders.sub_order import SubOrder

_TICKS: Final = 1 << 20
"""Ticks in an epoch, in which intervals are counted: fine enough, and a shard's number fits beside them in a word."""


def fractions_in_use(order: EpochOrder, canonical_nodes: CanonicalNodeSets) -> NDArray[np.float64]:
    """Return for how much of the epoch these canonical nodes have each shard in use.

    float64 (shard,), each a fraction of the epoch; 0 for shards that are not read.
    """
    shards, begins, ends = _intervals(order, canonical_nodes)
    lengths = np.bincount(shards, weights=(ends - begins) / _TICKS, minlength=order.catalog.n_shards)
    return lengths.astype(np.float64)


def most_at_once(order: EpochOrder, canonical_nodes: CanonicalNodeSets) -> int:
    """Return how many shards these canonical nodes have in use at the moment when they have most."""
    _, begins, ends = _intervals(order, canonical_nodes)
    moments = np.concatenate([begins, ends])
    steps = np.repeat(np.array([1, -1]), len(begins))
    in_order = np.lexsort((steps, moments))  # a shard that ends where another begins makes room for it
    return int(np.cumsum(steps[in_order]).max(initial=0))


def _intervals(
    order: EpochOrder, canonical_nodes: CanonicalNodeSets
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return when these canonical nodes use which shards: shard, begin and end in ticks, int64 (interval,) each.

    The intervals of one shard do not overlap.
    """
    tables = [
        _in_ticks(sub_order, mine) for sub_order, mine in zip(order.sub_orders, canonical_nodes) if sub_order.n_samples
    ]
    shards, begins, ends = (
        np.concatenate([np.zeros(0, np.int64), *(table[column] for table in tables)]) for column in range(3)
    )
    # One line holds a segment for each shard, one after the other. Then a running maximum finds what overlaps.
    width = _TICKS + 1
    by_begin = np.argsort(shards * width + begins, kind="stable")
    shards, begins, ends = shards[by_begin], begins[by_begin], ends[by_begin]
    reached = np.maximum.accumulate(shards * width + ends) - shards * width
    before = np.concatenate([np.zeros(min(1, len(shards)), np.int64), reached[:-1]])
    same = np.concatenate([np.zeros(min(1, len(shards)), np.bool_), shards[1:] == shards[:-1]])
    begins = np.where(same, np.maximum(begins, before), begins)
    some = ends > begins
    return shards[some], begins[some], ends[some]


def _in_ticks(sub_order: SubOrder, canonical_nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Return shard, begin and end in ticks of each use by these canonical nodes, int64 (use,) each."""
    uses = sub_order.uses(canonical_nodes)
    uses = uses.pick(np.flatnonzero(sub_order.is_read(uses)))
    n_read = sub_order.grid.first_ranks(np.arange(sub_order.n_canonical_nodes, dtype=np.int64), sub_order.n_read)
    sizes = np.maximum(1, n_read[uses.canonical_node]).astype(np.float64)
    ends = np.minimum(uses.likely_end, uses.end)
    begins_at = np.clip(np.floor(uses.first / sizes * _TICKS), 0, _TICKS)
    ends_at = np.clip(np.ceil(ends / sizes * _TICKS), 0, _TICKS)
    return uses.shard, begins_at.astype(np.int64), ends_at.astype(np.int64)
