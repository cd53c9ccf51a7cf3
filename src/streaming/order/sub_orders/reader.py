"""Reads one order at any positions: by its closed form, or walking and jumping along its canonical nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import smallest_type
from streaming.order.shuffle.protocol import PointShuffle
from streaming.order.sub_orders.rows import RowReader
from streaming.order.sub_orders.sub_order import Lane, Part, RunTable


class PartReader(Protocol):
    """Reads one order."""

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids at positions of this order. int64 (position,) -> int64 (position,)."""


def part_reader(part: Part) -> PartReader:
    """A fresh reader, for one thread."""
    rows = RowReader(part.row_choice)
    if part.point_shuffle is not None:
        return _PointReader(part.point_shuffle, part.table, rows)
    return _WindowReader(part, rows)


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """Sample ids as they are where every place stands for its own row, and, if asked for, shard and pass of each."""

    ids: NDArray[np.int64]
    shards: NDArray[np.int64]
    pass_numbers: NDArray[np.int64]

    @classmethod
    def empty(cls, n: int, with_runs: bool) -> _Found:
        """Room for `n`."""
        n_runs = n if with_runs else 0
        return cls(np.empty(n, np.int64), np.empty(n_runs, np.int64), np.empty(n_runs, np.int64))

    def fill(self, table: RunTable, places: NDArray[np.int64], at: slice) -> None:
        """Puts what lies at these places of a table there."""
        runs = table.offsets.searchsorted(places, "right") - 1
        self.ids[at] = table.id_base[runs] + places
        if len(self.shards):
            self.shards[at] = table.shard[runs]
            self.pass_numbers[at] = table.pass_number[runs]

    def rows(self, rows: RowReader) -> NDArray[np.int64]:
        """The ids of the rows that the places stand for, int64 (sample,); all at once, as few would cost as much."""
        return rows.ids(self.ids, self.shards, self.pass_numbers) if len(self.shards) else self.ids


class _PointReader:
    """Reads a shuffle in closed form; keeps no windows."""

    def __init__(self, shuffle: PointShuffle, table: RunTable, rows: RowReader) -> None:
        self._shuffle = shuffle
        self._table = table
        self._rows = rows

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PartReader."""
        found = _Found.empty(len(positions), not self._rows.is_plain)
        found.fill(self._table, self._shuffle.places(positions), slice(None))
        return found.rows(self._rows)


class _WindowReader:
    """Reads a shuffle by windows; keeps the last window of every canonical node it has read."""

    def __init__(self, part: Part, rows: RowReader) -> None:
        self._part = part
        self._rows = rows
        self._walkers: dict[int, _Walker] = {}

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PartReader."""
        found = _Found.empty(len(positions), not self._rows.is_plain)
        lanes, ranks = self._part.grid.locate(positions)
        if self._part.grid.n_lanes == 1:
            self._walker(0).fill(found, ranks, slice(None))
            return found.rows(self._rows)
        order = np.argsort(lanes.astype(smallest_type(self._part.grid.n_lanes)), kind="stable")
        ranks, in_order = ranks[order], lanes[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=np.int64(-1)))
        ends = np.append(starts[1:], len(in_order))
        for lane, start, end in zip(in_order[starts].tolist(), starts.tolist(), ends.tolist()):
            self._walker(lane).fill(found, ranks[start:end], slice(start, end))
        ids = np.empty(len(positions), np.int64)
        ids[order] = found.rows(self._rows)
        return ids

    def _walker(self, lane: int) -> _Walker:
        walker = self._walkers.get(lane)
        if walker is None:
            walker = self._walkers[lane] = _Walker(self._part.lane(lane))
        return walker


class _Walker:
    """Reads one canonical node: walks on where that is cheap, jumps where it is not. Owns the chunk it stands in."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._chunks: Iterator[NDArray[np.int64]] = iter(())
        self._chunk = np.zeros(0, np.int64)
        self._first = 0
        self._started = False

    def fill(self, found: _Found, ranks: NDArray[np.int64], at: slice) -> None:
        """Puts what lies at ranks of this canonical node, int64 (rank,), there."""
        found.fill(self._lane.table, self._places(ranks), at)

    def _places(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(ranks):
            return ranks
        within = ranks - self._first
        if within.view(np.uint64).max() < len(self._chunk):  # ranks before the chunk are huge there
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
        """Makes the chunk one that holds `rank`."""
        end = self._first + len(self._chunk)
        if not self._started or rank < self._first or rank >= end + self._lane.shuffle.reach:
            self._chunks = self._lane.shuffle.walk(rank)
            self._chunk, self._first, self._started = next(self._chunks), rank, True
        while rank >= self._first + len(self._chunk):
            self._first += len(self._chunk)
            self._chunk = next(self._chunks)
