"""Which shards a node will need, in order of first use: what read-ahead works from, without evaluating the order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.epoch import EpochOrder
from streaming.order.nodes.topology import Topology
from streaming.order.sub_orders.sub_order import ShardUses

MOST_SHARE: Final = 1 / 16
MOST_ROWS: Final = 500
"""Of one shard, read one by one: more requests cost more than the shard."""


@dataclass(frozen=True, eq=False, slots=True)
class LanesFrom:
    """Canonical nodes that are read, int64 (lane,) for each order, and the position from which on they are."""

    lanes: list[NDArray[np.int64]]
    position: int


def first_uses(order: EpochOrder, topology: Topology, node: int, position: int, limit: int) -> NDArray[np.int64]:
    """Shards that `node` may need at or after `position`, in order of first use, each once: int64 (≤ limit,).

    For any batch size; `EpochPlan.first_uses` knows the batch size and lists only what is really read. Here the shards
    of the node's own canonical nodes come first. Those of the others follow, as batches that are not a multiple of
    the number of canonical nodes are cut elsewhere.
    """
    own, others = [], []
    for part in order.parts:
        n_lanes = part.grid.n_lanes
        first = n_lanes * node // topology.n_nodes
        own.append(np.arange(first, -(-n_lanes * (node + 1) // topology.n_nodes)))
        others.append(np.setdiff1d(np.arange(n_lanes), own[-1]))
    shards = uses_of_node(order, [LanesFrom(own, position)], limit)
    if len(shards) < limit and any(map(len, others)):
        rest = uses_of_node(order, [LanesFrom(others, position)], order.catalog.n_shards)
        shards = np.concatenate([shards, rest[~np.isin(rest, shards)]])
    return shards[:limit]


def uses_of_node(
    order: EpochOrder, reads: list[LanesFrom], limit: int, *, with_spent: bool = True
) -> NDArray[np.int64]:
    """Shards that these canonical nodes need from these positions on, in order of first use: int64 (≤ limit,).

    `with_spent`: at the end also those that are almost surely done with.
    """
    sure: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    spent: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for read in reads:
        if read.position >= order.n_samples:
            continue
        begins = order.merge.counts(read.position) if order.merge else [read.position]
        for number, (part, begin, lanes) in enumerate(zip(order.parts, begins, read.lanes)):
            if begin >= part.n_samples or not len(lanes):
                continue
            uses, first = _sorted_uses(order, number, lanes)
            bounds = np.zeros(part.grid.n_lanes, np.int64)
            bounds[lanes] = part.grid.first_ranks(lanes, begin)
            bound = bounds[uses.lane]
            needed = uses.end > bound
            # Beyond its likely end, by more than chance explains, a run is almost surely done with: those come last.
            done = needed & (uses.likely_end + part.block // 8 < bound)
            needed &= ~done
            sure.append((first[needed], uses.shard[needed]))
            spent.append((first[done], uses.shard[done]))
    wanted = (sure, spent) if with_spent else (sure,)
    shards = np.concatenate([np.zeros(0, np.int64), *(_merged(pieces) for pieces in wanted if pieces)])
    return _distinct(shards, limit)


def returning_shards(order: EpochOrder, reads: list[LanesFrom]) -> NDArray[np.int64]:
    """Shards that some of these canonical nodes use several times in the epoch, ascending: int64 (shard,).

    A ring uses those at its seam where it begins and where it ends, and not between.
    """
    found = [np.zeros(0, np.int64)]
    for read in reads:
        for number, (part, lanes) in enumerate(zip(order.parts, read.lanes)):
            if part.n_samples and len(lanes):
                uses, _ = _sorted_uses(order, number, lanes)
                pairs = np.sort(uses.shard * part.grid.n_lanes + uses.lane)
                found.append(pairs[1:][pairs[1:] == pairs[:-1]] // part.grid.n_lanes)
    return np.unique(np.concatenate(found))


def thinly_read(order: EpochOrder, topology: Topology) -> NDArray[np.bool_] | None:
    """Which shards a node needs less than a sixteenth of this epoch: bool (shard,), None if there are none.

    Only where an epoch takes a part of a stream can there be such shards: whole passes need them all, if by many nodes.
    In closed form: a node reads its canonical nodes alone, or several nodes share one evenly.
    """
    drawn = order.drawn
    if not drawn.samples_any:
        return None
    n_lanes = 1 if order.effective_algorithm == "naive" else order.n_canonical_nodes
    needed = drawn.rows(order.catalog) / max(1.0, topology.n_nodes / n_lanes)
    thin = (drawn.passes == 0) & (needed > 0) & (needed < MOST_SHARE * order.catalog.shard_sizes) & (needed < MOST_ROWS)
    return thin if thin.any() else None


def _sorted_uses(order: EpochOrder, part_number: int, lanes: NDArray[np.int64]) -> tuple[ShardUses, NDArray[np.int64]]:
    """The uses of these canonical nodes by first use, and the positions of those; kept on the order."""
    key = (part_number, lanes.tobytes())
    kept = order.uses_by_lanes.get(key)
    if kept is None:
        part = order.parts[part_number]
        uses = part.uses(lanes)
        # The position of a rank, on the scale of the whole epoch. Only the order counts, so floats will do: they are
        # exact to 2**53, and equal inputs are equal everywhere.
        scale = part.grid.n_lanes * (order.n_samples / max(1, part.n_samples))
        first = (uses.first * scale).astype(np.int64)
        ascending = np.argsort(first, kind="stable")
        columns = (uses.shard, uses.lane, uses.first, uses.likely_end, uses.end)
        kept = ShardUses(*(column[ascending] for column in columns)), first[ascending]
        order.uses_by_lanes[key] = kept  # made twice by two threads, it is the same
    return kept


def _merged(pieces: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> NDArray[np.int64]:
    """The shards of several pieces by first use."""
    if len(pieces) == 1:
        return pieces[0][1]
    first = np.concatenate([piece[0] for piece in pieces])
    return np.concatenate([piece[1] for piece in pieces])[np.argsort(first, kind="stable")]


def _distinct(shards: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """The first `limit` different shards, in their order."""
    for head in (shards[: 4 * limit], shards):
        distinct = head[np.sort(np.unique(head, return_index=True)[1])]
        if len(distinct) >= limit or len(head) == len(shards):
            return distinct[:limit]
    return shards[:0]
