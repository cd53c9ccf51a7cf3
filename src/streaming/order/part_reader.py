"""Reads one order at any positions: by its closed form, or walking and jumping along its canonical nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.order.lanes import Lane, Part, RunTable
from streaming.order.rows import RowReader
from streaming.order.shuffle.protocol import PointShuffle


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


class _PointReader:
    """Reads a shuffle in closed form; keeps no windows."""

    def __init__(self, shuffle: PointShuffle, table: RunTable, rows: RowReader) -> None:
        self._shuffle = shuffle
        self._table = table
        self._rows = rows

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PartReader."""
        return _ids(self._table, self._shuffle.places(positions), self._rows)


class _WindowReader:
    """Reads a shuffle by windows; keeps the last window of every canonical node it has read."""

    def __init__(self, part: Part, rows: RowReader) -> None:
        self._part = part
        self._rows = rows
        self._walkers: dict[int, _Walker] = {}

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PartReader."""
        lanes, ranks = self._part.grid.locate(positions)
        if self._part.grid.n_lanes == 1:
            return self._walker(0).ids(ranks)
        # 16 bits where they suffice: numpy sorts those by radix.
        few = self._part.grid.n_lanes <= 1 << 16
        order = np.argsort(lanes.astype(np.uint16) if few else lanes, kind="stable")
        ranks = ranks[order]
        in_order = lanes[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=np.int64(-1)))
        ends = np.append(starts[1:], len(in_order))
        ids = np.empty(len(positions), np.int64)
        for lane, start, end in zip(in_order[starts].tolist(), starts.tolist(), ends.tolist()):
            ids[order[start:end]] = self._walker(lane).ids(ranks[start:end])
        return ids

    def _walker(self, lane: int) -> _Walker:
        walker = self._walkers.get(lane)
        if walker is None:
            walker = self._walkers[lane] = _Walker(self._part.lane(lane), self._rows)
        return walker


class _Walker:
    """Reads one canonical node: walks on where that is cheap, jumps where it is not. Owns the chunk it stands in."""

    def __init__(self, lane: Lane, rows: RowReader) -> None:
        self._lane = lane
        self._rows = rows
        self._chunks: Iterator[NDArray[np.int64]] = iter(())
        self._chunk = np.zeros(0, np.int64)
        self._first = 0
        self._started = False

    def ids(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids at ranks of this canonical node. int64 (rank,) -> int64 (rank,)."""
        return _ids(self._lane.table, self._places(ranks), self._rows)

    def _places(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(ranks):
            return ranks
        within = ranks - self._first
        if within.min() >= 0 and within.max() < len(self._chunk):
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


def _ids(table: RunTable, places: NDArray[np.int64], rows: RowReader) -> NDArray[np.int64]:
    runs = np.searchsorted(table.offsets, places, "right") - 1
    ids: NDArray[np.int64] = table.id_base[runs] + places
    if rows.is_plain:
        return ids
    return rows.ids(ids, table.shard[runs], table.pass_number[runs])
