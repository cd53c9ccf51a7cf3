"""What one worker reads of an epoch, in segments that are planned and announced before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order import Catalog, WorkerReader
from streaming.read.epoch.read_ahead import ReadAhead
from streaming.read.shards.pool import ShardPool

_N_UNREAD: Final = 3
"""Segments that may be planned and unread when the next are planned."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Samples to be read in order, and where they are: int64 (sample,) each."""

    ids: NDArray[np.int64]
    shards: NDArray[np.int64]
    rows: NDArray[np.int64]
    is_complete: bool
    """Whether all shards were on disk when they were planned, and none is evicted there."""
    done: Sequence[int] = ()
    """Under a limit: shards that are not needed after this segment, as far as is planned."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Planning:
    """How many samples a reader plans: `first` at once, then `then` at a time."""

    first: int
    then: int
    is_limited: bool = False
    """Whether the cache has a limit, so that shards are closed as soon as they are done with."""


def segments(
    reader: WorkerReader, catalog: Catalog, pool: ShardPool, ahead: ReadAhead | None, planning: Planning
) -> Iterator[Segment]:
    """All samples of `reader`, with at least `then` of them planned and announced beyond the present segment.

    The first batch comes before anything is announced, so that it can be asked for first. While shards are missing a
    segment is one batch, else as much as is planned at a time. Raises ClosedError.
    """
    present = _PlannedBatches(reader, catalog, planning.first)
    unread = present.shards
    if ahead is not None:
        yield from present.by_batch()
        present = _PlannedBatches(reader, catalog, planning.then)
    while True:
        upcoming = _PlannedBatches(reader, catalog, planning.then)
        in_use = _by_first_use(np.concatenate([unread, present.shards, upcoming.shards]))
        if pool.is_closed and not len(present):
            return  # all is read, and nothing is announced for the next epoch
        pool.check_open()
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


class _PlannedBatches:
    """The next whole batches of a reader."""

    def __init__(self, reader: WorkerReader, catalog: Catalog, min_samples: int) -> None:
        self.position = reader.position
        """The position in the epoch at which they begin."""
        self._ids, lengths = reader.next_ids(min_samples)
        self.shards, self._rows = catalog.locate(self._ids)
        self._ends = [0, *np.cumsum(lengths).tolist()]

    def __len__(self) -> int:
        return len(self._ids)

    def whole(self) -> Segment:
        """All batches in one segment."""
        return Segment(self._ids, self.shards, self._rows, is_complete=True)

    def tail(self, n_batches: int) -> NDArray[np.int64]:
        """The shards of the last batches."""
        return self.shards[self._ends[max(0, len(self._ends) - 1 - n_batches)] :]

    def by_batch(self, then: NDArray[np.int64] | None = None) -> Iterator[Segment]:
        """A segment for each batch; with the shards `then` that come next, each says which are done after it."""
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
