"""What one worker reads of an epoch, in stretches, planned and announced before they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.order import Catalog, WorkerReader
from streaming.read.read_ahead import ReadAhead
from streaming.read.shard_reader import ShardPool


@dataclass(frozen=True, slots=True)
class Stretch:
    """Samples to be read, in order, with where they lie: int64 (sample,) each.

    `is_complete`: their shards were all on disk when they were planned.
    """

    ids: NDArray[np.int64]
    shards: NDArray[np.int64]
    rows: NDArray[np.int64]
    is_complete: bool

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Planning:
    """How far a reader plans: `first` samples at once, then `then` at a time.

    `closes_at_once`: shards that are done with are closed at once, since the cache has a limit. `by_batch`: always one
    batch at a time.
    """

    first: int
    then: int
    closes_at_once: bool = False
    by_batch: bool = False


def stretches(
    reader: WorkerReader, catalog: Catalog, pool: ShardPool, ahead: ReadAhead | None, planning: Planning
) -> Iterator[Stretch]:
    """All that `reader` is due, with at least `then` samples planned and announced beyond the present stretch.

    The first batch comes before anything is announced, so that who reads it can be served first. While shards are
    missing a stretch is one batch, else as much as is planned at a time.
    """
    previous = _Planned(reader, catalog, planning.first)
    if ahead is not None:
        yield from previous.stretches(is_complete=False)
    current = previous if ahead is None else _Planned(reader, catalog, planning.then)
    while True:
        upcoming = _Planned(reader, catalog, planning.then)
        in_use = _by_first_use(np.concatenate([previous.shards, current.shards, upcoming.shards]))
        pool.keep_only(in_use, at_once=planning.closes_at_once)
        is_complete = ahead is None or ahead.advance(in_use, reader.position, pool.open_shards)
        if not len(current.ids):
            return
        yield from current.stretches(is_complete=is_complete and not planning.by_batch)
        previous, current = current, upcoming


class _Planned:
    """Whole batches, one after the other."""

    def __init__(self, reader: WorkerReader, catalog: Catalog, min_samples: int) -> None:
        self.ids, self._lengths = reader.next_ids(min_samples)
        self.shards, self._rows = catalog.locate(self.ids)

    def stretches(self, *, is_complete: bool) -> Iterator[Stretch]:
        """All in one if it is complete, else batch by batch."""
        ends = [len(self.ids)] if is_complete else np.cumsum(self._lengths).tolist()
        for begin, end in zip([0, *ends], ends):
            part = slice(begin, end)
            if end > begin:
                yield Stretch(self.ids[part], self.shards[part], self._rows[part], is_complete)


def _by_first_use(shards: NDArray[np.int64]) -> list[int]:
    """Distinct shards in order of first appearance."""
    distinct, first = np.unique(shards, return_index=True)
    ordered: list[int] = distinct[np.argsort(first)].tolist()
    return ordered
