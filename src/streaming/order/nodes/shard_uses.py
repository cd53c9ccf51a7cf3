"""Which shards a node needs: in order of first use, for read-ahead, and which it reads sparsely. In closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.order.epoch import EpochOrder
from streaming.order.nodes.assignment import CanonicalNodeSets
from streaming.order.nodes.topology import Topology


@dataclass(frozen=True, eq=False, slots=True)
class ReadsFrom:
    """What a node reads: canonical nodes of each sub-order, from `position` of the epoch on."""

    canonical_nodes: CanonicalNodeSets
    position: int


def first_uses(order: EpochOrder, topology: Topology, node: int, position: int, limit: int) -> NDArray[np.int64]:
    """Return the shards that `node` may need from `position` on, by first use, each once: int64 (≤ limit,).

    For any batch size. (`EpochPlan.first_uses` knows the batch size, and lists only shards that are really read.) The
    shards of the node's own canonical nodes come first. Those of the other canonical nodes follow, since batches that
    are not a multiple of the number of canonical nodes are cut elsewhere.
    """
    own, others = [], []
    for sub_order in order.sub_orders:
        n_canonical_nodes = sub_order.n_canonical_nodes
        first = n_canonical_nodes * node // topology.n_nodes
        own.append(np.arange(first, -(-n_canonical_nodes * (node + 1) // topology.n_nodes)))
        others.append(np.setdiff1d(np.arange(n_canonical_nodes), own[-1]))
    shards = uses_of_node(order, [ReadsFrom(own, position)], limit)
    if len(shards) < limit and any(map(len, others)):
        rest = uses_of_node(order, [ReadsFrom(others, position)], order.catalog.n_shards)
        shards = np.concatenate([shards, rest[~np.isin(rest, shards)]])
    return shards[:limit]


def uses_of_node(
    order: EpochOrder, reads: list[ReadsFrom], limit: int, *, with_spent: bool = True
) -> NDArray[np.int64]:
    """Return the shards that these reads need, in order of first use, each once: int64 (≤ limit,).

    With `with_spent`, shards follow at the end that are almost surely no longer needed.
    """
    sure: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    spent: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for read in reads:
        if read.position >= order.n_samples:
            continue
        begins = order.merge.counts(read.position) if order.merge else [read.position]
        for number, (sub_order, begin) in enumerate(zip(order.sub_orders, begins)):
            canonical_nodes = read.canonical_nodes[number]
            if begin >= sub_order.n_samples or not len(canonical_nodes):
                continue
            uses, first = order.shard_uses(number, canonical_nodes)
            bounds = np.zeros(sub_order.n_canonical_nodes, np.int64)
            bounds[canonical_nodes] = sub_order.grid.first_ranks(canonical_nodes, begin)
            bound = bounds[uses.canonical_node]
            needed = uses.end > bound
            # Further beyond its likely end than chance explains, a run is almost surely done: such runs come last. So
            # do those that begin where the epoch has read all that it reads.
            done = needed & ((uses.likely_end + sub_order.block // 8 < bound) | ~sub_order.is_read(uses))
            needed &= ~done
            sure.append((first[needed], uses.shard[needed]))
            spent.append((first[done], uses.shard[done]))
    wanted = (sure, spent) if with_spent else (sure,)
    shards = np.concatenate([np.zeros(0, np.int64), *(_merged(pieces) for pieces in wanted if pieces)])
    return _distinct(shards, limit)


def returning_shards(order: EpochOrder, reads: list[ReadsFrom]) -> NDArray[np.int64]:
    """Return the shards that one of these canonical nodes uses several times in the epoch: int64 (shard,), ascending.

    A ring uses the shards at its seam where it begins and where it ends, and not in between.
    """
    found = [np.zeros(0, np.int64)]
    for read in reads:
        for number, (sub_order, canonical_nodes) in enumerate(zip(order.sub_orders, read.canonical_nodes)):
            if sub_order.n_samples and len(canonical_nodes):
                uses, _ = order.shard_uses(number, canonical_nodes)
                pairs = np.sort(uses.shard * sub_order.n_canonical_nodes + uses.canonical_node)
                found.append(pairs[1:][pairs[1:] == pairs[:-1]] // sub_order.n_canonical_nodes)
    return np.unique(np.concatenate(found))


def sparsely_read(
    order: EpochOrder, topology: Topology, *, max_share: float, max_rows: int
) -> NDArray[np.bool_] | None:
    """Return which shards a node reads so sparsely that it is better off without the rest of them: bool (shard,).

    A node needs less than `max_share` and fewer than `max_rows` of the rows of such a shard, each by a request.
    None if there are none. Only a partial pass over a stream leaves such shards: whole passes need all rows, if on
    several nodes. The closed form assumes that a node reads its canonical nodes alone, or that several nodes share one
    evenly.
    """
    drawn = order.drawn
    if not drawn.samples_any:
        return None
    n_canonical_nodes = 1 if order.effective_algorithm == "naive" else order.n_canonical_nodes
    needed = drawn.rows(order.catalog) / max(1.0, topology.n_nodes / n_canonical_nodes)
    few = (needed > 0) & (needed < max_share * order.catalog.shard_sizes) & (needed < max_rows)
    sparse = few & (drawn.passes == 0)
    return sparse if sparse.any() else None


def _merged(pieces: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> NDArray[np.int64]:
    """Return the shards of all pieces by first use. A piece: first uses, ascending, and shards, int64 (use,) each."""
    if len(pieces) == 1:
        return pieces[0][1]
    first = np.concatenate([piece[0] for piece in pieces])
    return np.concatenate([piece[1] for piece in pieces])[np.argsort(first, kind="stable")]


def _distinct(shards: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return the first `limit` distinct shards, in their order."""
    for head in (shards[: 4 * limit], shards):
        distinct = head[np.sort(np.unique(head, return_index=True)[1])]
        if len(distinct) >= limit or len(head) == len(shards):
            return distinct[:limit]
    return shards[:0]
