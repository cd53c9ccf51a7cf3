"""Readers of one sub-order at any positions: by its closed form, or by walks and jumps along its canonical nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import smallest_type
from streaming.order.shuffle.protocol import PointShuffle
from streaming.order.sub_orders.rows import RowReader
from streaming.order.sub_orders.sub_order import CanonicalNode, RunTable, SubOrder


class SubOrderReader(Protocol):
    """Reads one sub-order."""

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample ids at positions of the sub-order. int64 (position,) -> int64 (position,)."""


def sub_order_reader(sub_order: SubOrder) -> SubOrderReader:
    """Make a reader, for one thread."""
    rows = RowReader(sub_order.row_choice)
    if sub_order.point_shuffle is not None:
        return _PointReader(sub_order.point_shuffle, sub_order.table, rows)
    return _WindowReader(sub_order, rows)


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """Sample ids, as if every place stood for its own row; and the shard and pass of each, if wanted."""

    ids: NDArray[np.int64]
    shards: NDArray[np.int64]
    pass_numbers: NDArray[np.int64]

    @classmethod
    def empty(cls, n: int, with_runs: bool) -> _Found:
        """Make room for `n` samples."""
        n_runs = n if with_runs else 0
        return cls(np.empty(n, np.int64), np.empty(n_runs, np.int64), np.empty(n_runs, np.int64))

    def fill(self, table: RunTable, places: NDArray[np.int64], at: slice) -> None:
        """Write the samples at these places of a table to the slice `at`."""
        runs = table.offsets.searchsorted(places, "right") - 1
        self.ids[at] = table.id_base[runs] + places
        if len(self.shards):
            self.shards[at] = table.shard[runs]
            self.pass_numbers[at] = table.pass_number[runs]

    def rows(self, rows: RowReader) -> NDArray[np.int64]:
        """Return the ids of the rows that the places stand for, int64 (sample,).

        For all places in one call, since a call for few costs as much.
        """
        return rows.ids(self.ids, self.shards, self.pass_numbers) if len(self.shards) else self.ids


class _PointReader:
    """Reads a shuffle that has a closed form. Keeps no windows."""

    def __init__(self, shuffle: PointShuffle, table: RunTable, rows: RowReader) -> None:
        self._shuffle = shuffle
        self._table = table
        self._rows = rows

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See SubOrderReader."""
        found = _Found.empty(len(positions), not self._rows.is_plain)
        found.fill(self._table, self._shuffle.places(positions), slice(None))
        return found.rows(self._rows)


class _WindowReader:
    """Reads a shuffle window by window. Keeps the last window of every canonical node that it has read."""

    def __init__(self, sub_order: SubOrder, rows: RowReader) -> None:
        self._sub_order = sub_order
        self._rows = rows
        self._walkers: dict[int, _Walker] = {}

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See SubOrderReader."""
        found = _Found.empty(len(positions), not self._rows.is_plain)
        canonical_nodes, ranks = self._sub_order.grid.locate(positions)
        if self._sub_order.grid.n_canonical_nodes == 1:
            self._walker(0).fill(found, ranks, slice(None))
            return found.rows(self._rows)
        order = np.argsort(canonical_nodes.astype(smallest_type(self._sub_order.grid.n_canonical_nodes)), kind="stable")
        ranks, in_order = ranks[order], canonical_nodes[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=np.int64(-1)))
        ends = np.append(starts[1:], len(in_order))
        for canonical_node, start, end in zip(in_order[starts].tolist(), starts.tolist(), ends.tolist()):
            self._walker(canonical_node).fill(found, ranks[start:end], slice(start, end))
        ids = np.empty(len(positions), np.int64)
        ids[order] = found.rows(self._rows)
        return ids

    def _walker(self, canonical_node: int) -> _Walker:
        walker = self._walkers.get(canonical_node)
        if walker is None:
            walker = self._walkers[canonical_node] = _Walker(self._sub_order.canonical_node(canonical_node))
        return walker


class _Walker:
    """Reads one canonical node: walks where that is cheap, jumps where it is not. Owns the chunk that it stands in."""

    def __init__(self, canonical_node: CanonicalNode) -> None:
        self._canonical_node = canonical_node
        self._chunks: Iterator[NDArray[np.int64]] = iter(())
        self._chunk = np.zeros(0, np.int64)
        self._first = 0
        self._started = False

    def fill(self, found: _Found, ranks: NDArray[np.int64], at: slice) -> None:
        """Write the samples at ranks of this canonical node, int64 (rank,), to the slice `at`."""
        found.fill(self._canonical_node.table, self._places(ranks), at)

    def _places(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(ranks):
            return ranks
        within = ranks - self._first
        if within.view(np.uint64).max() < len(self._chunk):  # a rank before the chunk is huge as an unsigned number
            return self._chunk[within]
        order = np.argsort(ranks, kind="stable")
        in_order = ranks[order]
        places = np.empty(len(ranks), np.int64)
        done = 0
        while done < len(ranks):
            self._move_to(int(in_order[done]))
            end = int(np.searchsorted(in_order, self._first + len(self._chunk), "left"))
            places[order[done:end]] = self._chunk[in_order[done:end] - self._first]
            done = end
        return places

    def _move_to(self, rank: int) -> None:
        """Move to the chunk that holds `rank`."""
        end = self._first + len(self._chunk)
        if not self._started or rank < self._first or rank >= end + self._canonical_node.shuffle.reach:
            self._chunks = self._canonical_node.shuffle.walk(rank)
            self._chunk, self._first, self._started = next(self._chunks), rank, True
        while rank >= self._first + len(self._chunk):
            self._first += len(self._chunk)
            self._chunk = next(self._chunks)
