"""What one worker reads of an epoch, in segments, planned and announced before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order import Catalog, WorkerReader
from streaming.read.epoch.read_ahead import ReadAhead
from streaming.read.shards.pool import ShardPool

_N_UNREAD: Final = 3  # segments that may be planned and unread when the next are planned


@dataclass(frozen=True, slots=True)
class Segment:
    """Samples to be read, in order, with where they lie: int64 (sample,) each.

    `is_complete`: their shards were all on disk when they were planned, and nobody makes room there. `done`: shards
    that are not needed after it, as far as is planned; only where the cache has a limit.
    """

    ids: NDArray[np.int64]
    shards: NDArray[np.int64]
    rows: NDArray[np.int64]
    is_complete: bool
    done: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Planning:
    """How far a reader plans: `first` samples at once, then `then` at a time.

    `is_limited`: the cache has a limit, so shards are closed as soon as they are done with.
    """

    first: int
    then: int
    is_limited: bool = False


def segments(
    reader: WorkerReader, catalog: Catalog, pool: ShardPool, ahead: ReadAhead | None, planning: Planning
) -> Iterator[Segment]:
    """All that `reader` is due, with at least `then` samples planned and announced beyond the present segment.

    The first batch comes before anything is announced, so that who reads it can be served first. While shards are
    missing a segment is one batch, else as much as is planned at a time.
    """
    present = _Planned(reader, catalog, planning.first)
    unread = present.shards
    if ahead is not None:
        yield from present.by_batch()
        present = _Planned(reader, catalog, planning.then)
    while True:
        upcoming = _Planned(reader, catalog, planning.then)
        in_use = _by_first_use(np.concatenate([unread, present.shards, upcoming.shards]))
        pool.keep_only(in_use, at_once=planning.is_limited)
        is_complete = ahead is None or ahead.advance(in_use, present.position, reader.position, pool.open_shards)
        if not len(present):
            return
        if planning.is_limited:
            yield from present.by_batch(then=upcoming.shards)
            unread = present.tail(_N_UNREAD)
        else:
            yield from [present.whole()] if is_complete else present.by_batch()
            unread = present.shards
        present = upcoming


class _Planned:
    """Whole batches, one after the other."""

    def __init__(self, reader: WorkerReader, catalog: Catalog, min_samples: int) -> None:
        self.position = reader.position  # of the epoch, where they begin
        self._ids, lengths = reader.next_ids(min_samples)
        self.shards, self._rows = catalog.locate(self._ids)
        self._ends = [0, *np.cumsum(lengths).tolist()]

    def __len__(self) -> int:
        return len(self._ids)

    def whole(self) -> Segment:
        """All in one."""
        return Segment(self._ids, self.shards, self._rows, is_complete=True)

    def tail(self, n_batches: int) -> NDArray[np.int64]:
        """The shards of the last batches."""
        return self.shards[self._ends[max(0, len(self._ends) - 1 - n_batches)] :]

    def by_batch(self, then: NDArray[np.int64] | None = None) -> Iterator[Segment]:
        """Batch by batch; with what is done after each, if the shards that come `then` are given."""
        shards, last = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if then is not None:
            ahead = np.concatenate([self.shards, then])
            shards, from_end = np.unique(ahead[::-1], return_index=True)
            last = len(ahead) - 1 - from_end
        for begin, end in zip(self._ends, self._ends[1:]):
            part = slice(begin, end)
            done = shards[(begin <= last) & (last < end)].tolist()
            yield Segment(self._ids[part], self.shards[part], self._rows[part], is_complete=False, done=done)


def _by_first_use(shards: NDArray[np.int64]) -> list[int]:
    """Distinct shards in order of first appearance."""
    distinct, first = np.unique(shards, return_index=True)
    ordered: list[int] = distinct[np.argsort(first)].tolist()
    return ordered
