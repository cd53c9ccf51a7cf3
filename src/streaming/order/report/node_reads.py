"""Which part of which canonical nodes each node reads, and which shards it needs for that: closed forms, by batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching.exact_merge import ExactMerge
from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.epoch import rows_drawn
from streaming.order.nodes.assignment import CanonicalNodeSets
from streaming.order.nodes.partition import node_share
from streaming.order.nodes.plan import EpochPlan

_LONGEST_PERIOD: Final = 64
_MOST_BATCHES: Final = 1024
_MOST_STEPS: Final = 1 << 21

Cut = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""The slots of a batch, cut by node: node, canonical node and number of slots, int64 (pair,) each."""


class NodeReads:
    """Which part of each canonical node each node reads in whole batches: a table of (node, canonical node) pairs.

    The canonical nodes of all sub-orders are numbered through, one sub-order after the other.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan
        self._order = order = plan.order
        self._n_nodes = plan.topology.n_nodes
        counts = np.array([sub_order.n_canonical_nodes for sub_order in order.sub_orders], np.int64)
        self._first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        """Number of the first canonical node of each sub-order, int64 (sub-order + 1,)."""
        self._n_canonical_nodes = int(self._first[-1])
        n = max(1, self._n_canonical_nodes)
        pairs, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for node, canonical_node, n_slots in self._cuts():
            pairs.append(node * n + canonical_node)
            numbers.append(n_slots)
        distinct, which = np.unique(np.concatenate(pairs), return_inverse=True)
        self._node, self._canonical_node = np.divmod(distinct, n)
        if order.effective_algorithm == "naive":  # any canonical node reads any shard of its sub-order
            self._canonical_node = self._first[self._sub_order_of(self._canonical_node)]
            distinct, again = np.unique(self._node * n + self._canonical_node, return_inverse=True)
            self._node, self._canonical_node = np.divmod(distinct, n)
            which = again[which]
        n_read = np.bincount(which, weights=np.concatenate(numbers), minlength=len(distinct))
        n_read_by_all = np.bincount(self._canonical_node, weights=n_read, minlength=self._n_canonical_nodes)
        self._fraction = n_read / np.maximum(1, n_read_by_all[self._canonical_node])

    def canonical_nodes_of(self, node: int) -> CanonicalNodeSets:
        """Return the canonical nodes of each sub-order that a node reads."""
        mine = self._canonical_node[self._node == node]
        sub_orders = self._sub_order_of(mine)
        return [mine[sub_orders == number] - self._first[number] for number in range(len(self._order.sub_orders))]

    def busiest(self) -> int:
        """Return the node that reads most canonical nodes."""
        return int(np.bincount(self._node, minlength=1).argmax())

    def needs(self, sizes: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
        """Yield for each node the number of shards that it needs and the sum of their `sizes`, float64 (shard,)."""
        if self._order.effective_algorithm is None and self._n_canonical_nodes == len(self._order.sub_orders) == 1:
            yield from self._sequential_needs(sizes)
            return
        rows, shards_of = rows_drawn(self._order), self._shards_by_canonical_node()
        known: dict[bytes, tuple[float, float]] = {}
        for node in range(self._n_nodes):
            mine = np.flatnonzero(self._node == node)
            canonical_nodes, fractions = self._canonical_node[mine], self._fraction[mine]
            key = canonical_nodes.tobytes() + fractions.astype(np.float32).tobytes()
            if key not in known:  # nodes that share their canonical nodes are all alike
                pieces = [shards_of[number] for number in canonical_nodes.tolist()]
                lengths = [len(piece) for piece in pieces]
                shards, which = np.unique(np.concatenate([np.zeros(0, np.int64), *pieces]), return_inverse=True)
                fractions, canonical_nodes = np.repeat(fractions, lengths), np.repeat(canonical_nodes, lengths)
                missed = np.ones(len(shards))
                np.multiply.at(missed, which, self._missed(rows[shards[which]], fractions, canonical_nodes))
                known[key] = float((1 - missed).sum()), float((1 - missed) @ sizes[shards])
            yield known[key]

    def _sequential_needs(self, sizes: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
        """Yield the needs of each node, exactly, for one canonical node in stored order.

        A node then reads positions `low` to `high` of each batch, and shards lie side by side.
        """
        size, uses = self._plan.global_batch, self._order.sub_orders[0].uses(np.zeros(1, np.int64))
        for node in range(self._n_nodes):
            low, high = node_share(size, self._plan.topology, node)
            at = uses.first % size
            met = ((low <= at) & (at < high)) | ((low - at) % size < uses.end - uses.first)
            shards = np.unique(uses.shard[met & (high > low)])
            yield float(len(shards)), float(sizes[shards].sum())

    def _missed(
        self, rows: NDArray[np.int64], fractions: NDArray[np.float64], canonical_nodes: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return how likely a reader of a fraction of a canonical node gets none of `rows` samples of it: (case,)."""
        if self._order.effective_algorithm is not None:
            return np.asarray((1 - fractions) ** rows)
        # In stored order a node gets a segment of each batch. A shard meets such a segment, or falls between two.
        shares = np.array([sub_order.n_read / sub_order.n_canonical_nodes for sub_order in self._order.sub_orders])
        shares = shares[self._sub_order_of(canonical_nodes)]
        per_batch = self._plan.global_batch * shares / max(1, self._order.n_samples)
        return np.clip(1 - fractions - (rows - 1) / per_batch, 0, 1)

    def _shards_by_canonical_node(self) -> list[NDArray[np.int64]]:
        """Return the shards of every canonical node, each once."""
        n_shards = max(1, self._order.catalog.n_shards)
        pairs = [np.zeros(0, np.int64)]
        for sub_order, first in zip(self._order.sub_orders, self._first.tolist()):
            uses = sub_order.uses(np.arange(sub_order.n_canonical_nodes, dtype=np.int64))
            uses = uses.pick(np.flatnonzero(sub_order.is_read(uses)))
            pairs.append((uses.canonical_node + first) * n_shards + uses.shard)
        canonical_node, shard = np.divmod(np.unique(np.concatenate(pairs)), n_shards)
        return np.split(shard, np.searchsorted(canonical_node, np.arange(1, self._n_canonical_nodes), "left"))

    def _sub_order_of(self, canonical_nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._first, canonical_nodes, "right") - 1

    def _cuts(self) -> Iterator[Cut]:
        """Yield batches that show how all batches are cut: one period of them if there is one, else some."""
        order, size = self._order, self._plan.global_batch
        n = min(order.n_samples, self._plan.stop)
        if order.merge is None:
            for begin in self._starts(0, n // size, size):
                yield self._cut_of_one_sub_order(0, begin, begin + size)
            if n < size:
                yield self._cut_of_one_sub_order(0, 0, n)
        elif isinstance(order.merge, UnitMerge) and not order.deals_units:  # a batch is a unit of one sub-order
            for number, n_units in enumerate(order.merge.n_units):
                for begin in self._starts(number, n_units, size):
                    yield self._cut_of_one_sub_order(number, begin, begin + size)
        elif isinstance(order.merge, ExactMerge):  # a batch holds a segment of each sub-order, dealt on its own
            for number, share in enumerate(order.merge.composition):
                n_slots = size // order.merge.unit * share
                for begin in self._starts(number, n // size, n_slots) if share else ():
                    yield self._cut_of_one_sub_order(number, begin, begin + n_slots)
        else:
            cost = self._n_canonical_nodes + self._n_nodes + size // order.slot_samples
            n_seen = max(1, min(n // size, _MOST_BATCHES, _MOST_STEPS // cost))
            for number in range(n_seen):
                begin = n // size * number // n_seen * size
                yield self._cut_of_slots(begin, min(begin + size, n))

    def _starts(self, number: int, n_batches: int, size: int) -> list[int]:
        """Return where whole batches of one sub-order begin: one period of residues, or some of a long period.

        `size`: slots that a batch has of this sub-order.
        """
        n_canonical_nodes = self._order.sub_orders[number].n_canonical_nodes
        period = min(n_batches, n_canonical_nodes // math.gcd(n_canonical_nodes, size))
        n_seen = min(period, _LONGEST_PERIOD, max(1, _MOST_STEPS // (n_canonical_nodes + self._n_nodes)))
        return [period * step // n_seen * size for step in range(n_seen)]

    def _cut_of_one_sub_order(self, number: int, begin: int, stop: int) -> Cut:
        grid = self._order.sub_orders[number].grid
        canonical_nodes = np.arange(grid.n_canonical_nodes, dtype=np.int64)
        ends = np.cumsum(grid.first_ranks(canonical_nodes, stop) - grid.first_ranks(canonical_nodes, begin))
        node_ends = self._node_ends(stop - begin)
        cuts = np.union1d(ends, node_ends)
        cuts = cuts[cuts > 0]
        canonical_node = np.searchsorted(ends, cuts) + self._first[number]
        return np.searchsorted(node_ends, cuts), canonical_node, np.diff(cuts, prepend=np.int64(0))

    def _cut_of_slots(self, begin: int, stop: int) -> Cut:
        order, unit, n = self._order, self._order.slot_samples, self._n_canonical_nodes
        n_slots = (stop - begin) // unit
        scaled, sub_orders = order.locate(begin + unit * np.arange(n_slots, dtype=np.int64))
        in_order = np.argsort(scaled, kind="stable")
        node = np.repeat(np.arange(self._n_nodes), np.diff(self._node_ends(n_slots), prepend=np.int64(0)))
        counts = np.diff(self._first)
        own = scaled // (counts.max() // counts)[sub_orders] + self._first[sub_orders]
        pairs, n_slots_of = np.unique(node * n + own[in_order], return_counts=True)
        return pairs // n, pairs % n, n_slots_of

    def _node_ends(self, n_slots: int) -> NDArray[np.int64]:
        """Return where each node's share of a batch ends, int64 (node,)."""
        return np.array([node_share(n_slots, self._plan.topology, node)[1] for node in range(self._n_nodes)], np.int64)
