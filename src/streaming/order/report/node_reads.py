"""Which part of which canonical nodes each node reads, and which shards it so needs: closed forms, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.epoch import rows_drawn
from streaming.order.nodes.assignment import Lanes
from streaming.order.nodes.partition import node_share
from streaming.order.nodes.plan import EpochPlan

_LONGEST_PERIOD: Final = 64
_MOST_BATCHES: Final = 1024
_MOST_STEPS: Final = 1 << 21

Cut = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""The slots of a batch by lane, cut by node: node, lane and number of slots, int64 (pair,) each."""


class NodeReads:
    """Which part of each canonical node each node reads, in whole batches: a sparse table of (node, lane) pairs.

    Lanes are the canonical nodes of all orders of the epoch, counted through one order after the other.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan
        self._order = order = plan.order
        self._n_nodes = plan.topology.n_nodes
        n_lanes = np.array([part.grid.n_lanes for part in order.parts], np.int64)
        self._first_lane = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_lanes)])
        self._n_lanes = int(self._first_lane[-1])
        pairs, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for node, lane, n_slots in self._cuts():
            pairs.append(node * max(1, self._n_lanes) + lane)
            numbers.append(n_slots)
        distinct, which = np.unique(np.concatenate(pairs), return_inverse=True)
        self._node, self._lane = np.divmod(distinct, max(1, self._n_lanes))
        if order.effective_algorithm == "naive":  # any canonical node reads any shard of its order
            self._lane = self._first_lane[self._part_of(self._lane)]
            distinct, again = np.unique(self._node * max(1, self._n_lanes) + self._lane, return_inverse=True)
            self._node, self._lane = np.divmod(distinct, max(1, self._n_lanes))
            which = again[which]
        n_read = np.bincount(which, weights=np.concatenate(numbers), minlength=len(distinct))
        in_lane = np.bincount(self._lane, weights=n_read, minlength=self._n_lanes)
        self._fraction = n_read / np.maximum(1, in_lane[self._lane])

    def lanes_of(self, node: int) -> Lanes:
        """The canonical nodes of each order that a node reads."""
        mine = self._lane[self._node == node]
        parts = self._part_of(mine)
        return [mine[parts == number] - self._first_lane[number] for number in range(len(self._order.parts))]

    def busiest(self) -> int:
        """The node that reads most canonical nodes."""
        return int(np.bincount(self._node, minlength=1).argmax())

    def needs(self, sizes: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
        """Per node: how many shards it needs, and the sum of their `sizes`, float64 (shard,)."""
        if self._order.effective_algorithm is None and self._n_lanes == len(self._order.parts) == 1:
            yield from self._sequential_needs(sizes)
            return
        rows, shards_of_lane = rows_drawn(self._order), self._shards_of_lanes()
        known: dict[bytes, tuple[float, float]] = {}
        for node in range(self._n_nodes):
            mine = np.flatnonzero(self._node == node)
            key = self._lane[mine].tobytes() + self._fraction[mine].astype(np.float32).tobytes()
            if key not in known:  # without canonical nodes of their own all nodes are alike
                pieces = [shards_of_lane[lane] for lane in self._lane[mine].tolist()]
                fractions = np.repeat(self._fraction[mine], [len(piece) for piece in pieces])
                shards, which = np.unique(np.concatenate([np.zeros(0, np.int64), *pieces]), return_inverse=True)
                lanes = np.repeat(self._lane[mine], [len(piece) for piece in pieces])
                missed = np.ones(len(shards))
                np.multiply.at(missed, which, self._missed(rows[shards[which]], fractions, lanes))
                known[key] = float((1 - missed).sum()), float((1 - missed) @ sizes[shards])
            yield known[key]

    def _sequential_needs(self, sizes: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
        """The same, exactly, where a node reads positions `low` to `high` of each batch and shards lie side by side."""
        size, uses = self._plan.global_batch, self._order.parts[0].uses(np.zeros(1, np.int64))
        for node in range(self._n_nodes):
            low, high = node_share(size, self._plan.topology, node)
            at = uses.first % size
            met = ((low <= at) & (at < high)) | ((low - at) % size < uses.end - uses.first)
            shards = np.unique(uses.shard[met & (high > low)])
            yield float(len(shards)), float(sizes[shards].sum())

    def _missed(
        self, rows: NDArray[np.int64], fractions: NDArray[np.float64], lanes: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """How likely a reader of this fraction of this lane gets none of so many samples of it: (case,) each."""
        if self._order.effective_algorithm is not None:
            return np.asarray((1 - fractions) ** rows)
        # In stored order a node gets a stretch of each batch; a shard meets one, or falls between two.
        shares = np.array([part.n_samples / part.grid.n_lanes for part in self._order.parts])
        per_batch = self._plan.global_batch * shares[self._part_of(lanes)] / max(1, self._order.n_samples)
        return np.clip(1 - fractions - (rows - 1) / per_batch, 0, 1)

    def _shards_of_lanes(self) -> list[NDArray[np.int64]]:
        """The shards of every lane, each once."""
        n_shards = max(1, self._order.catalog.n_shards)
        pairs = [np.zeros(0, np.int64)]
        for part, first in zip(self._order.parts, self._first_lane.tolist()):
            uses = part.uses(np.arange(part.grid.n_lanes, dtype=np.int64))
            pairs.append((uses.lane + first) * n_shards + uses.shard)
        lane, shard = np.divmod(np.unique(np.concatenate(pairs)), n_shards)
        return np.split(shard, np.searchsorted(lane, np.arange(1, self._n_lanes), "left"))

    def _part_of(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._first_lane, lanes, "right") - 1

    def _cuts(self) -> Iterator[Cut]:
        """Batches that show how all are cut: one period of them where there is one, else some."""
        order, size = self._order, self._plan.global_batch
        n = min(order.n_samples, self._plan.stop)
        if order.merge is None:
            for begin in self._starts(0, n // size):
                yield self._cut_of_one_order(0, begin, begin + size)
            if n < size:
                yield self._cut_of_one_order(0, 0, n)
        elif isinstance(order.merge, UnitMerge) and not order.deals_units:  # a batch is a unit of one order
            for number, n_units in enumerate(order.merge.n_units):
                for begin in self._starts(number, n_units):
                    yield self._cut_of_one_order(number, begin, begin + size)
        else:
            cost = self._n_lanes + self._n_nodes + size // order.slot_samples
            n_seen = max(1, min(n // size, _MOST_BATCHES, _MOST_STEPS // cost))
            for number in range(n_seen):
                begin = n // size * number // n_seen * size
                yield self._cut_of_slots(begin, min(begin + size, n))

    def _starts(self, number: int, n_batches: int) -> list[int]:
        """Where whole batches of one order begin: one period of residues, or some of a long one."""
        n_lanes, size = self._order.parts[number].grid.n_lanes, self._plan.global_batch
        period = min(n_batches, n_lanes // math.gcd(n_lanes, size))
        n_seen = min(period, _LONGEST_PERIOD, max(1, _MOST_STEPS // (n_lanes + self._n_nodes)))
        return [period * step // n_seen * size for step in range(n_seen)]

    def _cut_of_one_order(self, number: int, begin: int, stop: int) -> Cut:
        grid = self._order.parts[number].grid
        lanes, node_ends = np.arange(grid.n_lanes, dtype=np.int64), self._node_ends(stop - begin)
        lane_ends = np.cumsum(grid.first_ranks(lanes, stop) - grid.first_ranks(lanes, begin))
        cuts = np.union1d(lane_ends, node_ends)
        cuts = cuts[cuts > 0]
        lane = np.searchsorted(lane_ends, cuts) + self._first_lane[number]
        return np.searchsorted(node_ends, cuts), lane, np.diff(cuts, prepend=np.int64(0))

    def _cut_of_slots(self, begin: int, stop: int) -> Cut:
        order, unit = self._order, self._order.slot_samples
        n_slots = (stop - begin) // unit
        scaled, parts = order.lanes_and_parts(begin + unit * np.arange(n_slots, dtype=np.int64))
        in_order = np.argsort(scaled, kind="stable")
        node = np.repeat(np.arange(self._n_nodes), np.diff(self._node_ends(n_slots), prepend=np.int64(0)))
        n_lanes = np.diff(self._first_lane)
        own = scaled // (n_lanes.max() // n_lanes)[parts] + self._first_lane[parts]
        pairs, counts = np.unique(node * self._n_lanes + own[in_order], return_counts=True)
        return pairs // self._n_lanes, pairs % self._n_lanes, counts

    def _node_ends(self, n_slots: int) -> NDArray[np.int64]:
        """Where each node's share of a batch ends, int64 (node,)."""
        return np.array([node_share(n_slots, self._plan.topology, node)[1] for node in range(self._n_nodes)], np.int64)
