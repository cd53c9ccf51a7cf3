"""What one worker reads of an epoch, in segments that are planned and announced before they are read.

`segments` plans; `ReadAhead` announces to the fetcher the shards that the reader will need, in order of first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from streaming.fetch.client import FetchClient
from streaming.fetch.wire import START
from streaming.order import Catalog, WorkerReader
from streaming.read.shards.files import ShardFiles
from streaming.read.shards.pool import ShardPool
from streaming.read.telemetry.counters import Count

MAX_ANNOUNCED: Final = 1024
_MAX_LOOKED_AT: Final = 4 * MAX_ANNOUNCED
"""Shards looked for in the order; those in use and those on disk are passed over."""
_MAX_LOOKS: Final = 64
"""Shards looked for on disk to count how far read-ahead is: they come in about the order of the list."""

_N_UNREAD: Final = 3
"""Segments that may be planned and unread when the next are planned."""

# Divisors of the shards that fit into a cache with a limit.
_PARTS_OF_CACHE: Final = 8
"""A list is renewed when this part of the shards that fit has been consumed,"""
_PARTS_OF_SPARE: Final = 4
"""or this part of those that fit beyond the needed ones."""
_PART_AT_ONCE: Final = 4
"""This part is asked for whatever else is on disk, if not all shards in use fit."""
_PART_OF_NEXT: Final = 16
"""This part may be fetched for the next epoch."""

Horizon = Callable[[int, int], tuple[list[int], list[int]]]
"""(position, limit) -> shards of this epoch from the position on, and of the next: by first use, at most `limit`."""


@dataclass(frozen=True, slots=True)
class ListRules:
    """How much a reader announces, and how often."""

    most: int
    """Shards in a list, at most."""
    renew_after: int
    """Positions after which a list is renewed."""
    room: int | None = None
    """Shards that fit into a cache with a limit; None: it has none."""
    most_held: int = 0
    """Shards held before they are opened, at most. 0: not all in use at once fit, so open ones are not held either."""

    @classmethod
    def unlimited(cls, positions_per_shard: float) -> Self:
        """The rules for a cache that keeps what it gets."""
        return cls(MAX_ANNOUNCED, int(MAX_ANNOUNCED / 2 * positions_per_shard))

    @classmethod
    def limited(cls, cache_shards: float, needed_shards: float, positions_per_shard: float) -> Self:
        """The rules for a cache that holds `cache_shards`, where `needed_shards` are needed to fetch none twice."""
        most = min(_MAX_LOOKED_AT, math.ceil(1.5 * cache_shards) + 64)
        # Shards that have been consumed since the last list take room from those that are fetched ahead.
        spare = cache_shards - needed_shards if cache_shards > needed_shards else cache_shards
        consumed = max(1.0, min(cache_shards / _PARTS_OF_CACHE, spare / _PARTS_OF_SPARE))
        most_held = max(1, int(cache_shards / 2)) if cache_shards >= needed_shards else 0
        return cls(most, max(1, int(consumed * positions_per_shard)), max(1, int(0.95 * cache_shards) - 1), most_held)


class ReadAhead:
    """One reader's announcements. Without a limit it sends nothing, and starts no fetcher, while all is on disk."""

    def __init__(
        self,
        client: FetchClient,
        files: ShardFiles,
        reader: str,
        horizon: Horizon | None,
        rules: ListRules,
        *,
        sparse: NDArray[np.bool_] | None = None,
    ) -> None:
        """`reader`: the name of this reader in its job. `sparse`: shards not worth fetching, bool (shard,).

        `horizon` is asked when a list is to be renewed, and whenever a shard is missing that was not announced. None:
        only shards that are planned exactly are announced.
        """
        self._client = client
        self._files = files
        self._reader = reader
        self._horizon = horizon
        self._rules = rules
        self._sparse = sparse
        # A position; None: the last list named all that comes.
        self._renew_at = None if horizon is None else -1
        self._announced: dict[int, None] = {}  # in order of first use
        self._looked_at: set[int] = set()
        self._held: set[int] = set()
        self._coming: list[int] = []  # announced, and not on disk when last looked for
        self._has_begun = False

    def advance(self, planned: Sequence[int], begin: int, end: int, opened: Iterable[int] = ()) -> bool:
        """Announce what comes next, if it is time to. Returns whether all planned shards are on disk.

        `planned`: the shards to be read next, in this order, for positions `begin` to `end` of the epoch. `opened`:
        shards that the reader has open.
        """
        self._count_on_disk()
        missing = [shard for shard in planned if not self._files.is_present(shard)]
        if self._rules.room is None:
            self._announce_missing(self._worth_it(missing), end)
        else:
            # From `begin` on, not `end`: other readers of this node need the shards in between, which must be kept.
            self._announce_all(self._worth_it(planned), begin, opened, self._rules.room)
        return not missing

    @property
    def is_limited(self) -> bool:
        """Whether the cache has a limit."""
        return self._rules.room is not None

    def let_go(self) -> None:
        """Hold nothing until the next list: a reader that waits for room must not keep others from making some."""
        if self._held:
            self._announce(list(self._announced), ())

    def _announce_missing(self, missing: Sequence[int], position: int) -> None:
        if not self._is_due(position) and self._announced.keys() >= set(missing):
            return
        wanted = dict.fromkeys(missing)
        if self._horizon is not None:
            this, following = self._horizon(position, _MAX_LOOKED_AT)
            ahead = this + following
            self._renew_at = None if len(ahead) < _MAX_LOOKED_AT else position + self._rules.renew_after
            wanted |= dict.fromkeys(shard for shard in ahead if not self._files.is_present(shard))
        if wanted or self._announced:
            listed = list(wanted)[: self._rules.most]
            if len(listed) < len(wanted) and self._renew_at is None:
                self._renew_at = position + self._rules.renew_after
            self._announce(listed, ())

    def _announce_all(self, planned: Sequence[int], position: int, opened: Iterable[int], room: int) -> None:
        most_held = self._rules.most_held
        held = {*planned[:most_held], *opened} if most_held else set()
        if not self._is_due(position) and self._looked_at.issuperset(planned) and self._held.issuperset(held):
            return
        this: list[int] = []
        following: list[int] = []
        if self._horizon is not None:
            this, following = self._horizon(position, self._rules.most)
            self._renew_at = position + self._rules.renew_after
        self._looked_at = {*planned, *this, *following}
        self._announce(self._listed(planned, this, following, room), held)

    def _listed(self, planned: Sequence[int], this: Sequence[int], following: Sequence[int], room: int) -> list[int]:
        """The shards to name, of those planned, of `this` epoch and of the `following` one, each by first use.

        First come those needed at once. Then those on disk that this epoch needs, so that none is evicted for what is
        fetched ahead, however far off its need: some shards used at the beginning of an epoch come once more at its
        end. Then the absent ones, and of the next epoch those on disk and a beginning. No more than fits is named: a
        shard that is named and must be evicted all the same would be fetched again.
        """
        is_present = self._files.is_present
        n_at_once = room if self._rules.most_held else max(1, room // _PART_AT_ONCE)
        listed = dict.fromkeys(planned[:n_at_once])
        listed |= dict.fromkeys(filter(is_present, this))
        absent = [shard for shard in this if shard not in listed]
        listed |= dict.fromkeys(absent[: max(0, room - len(listed))])
        n_next = 0 if len(listed) >= room else max(1, room // _PART_OF_NEXT)
        for number, shard in enumerate(following):
            if len(listed) >= room:
                break
            if number < n_next or is_present(shard):
                listed[shard] = None
        return list(listed)[: self._rules.most]

    def _announce(self, shards: Sequence[int], held: Collection[int]) -> None:
        self._announced, self._held = dict.fromkeys(shards), set(held)
        # Without a limit no shard is announced that is on disk.
        self._coming = [shard for shard in shards if not (self.is_limited and self._files.is_present(shard))]
        request = self._files.request
        self._client.announce(self._reader, list(map(request, shards)), list(map(request, held)))
        if not self._has_begun:
            # Withdraws what was announced at the start. The client of a worker knows nothing of that list and, without
            # a limit, sends nothing: the list may stay then, since what it names is what the epoch needs first anyway.
            self._has_begun = True
            self._client.announce(START, ())

    def _count_on_disk(self) -> None:
        """Count how much of the list is on disk by now."""
        n_announced = len(self._announced)
        if not n_announced:
            return
        first = self._coming[:_MAX_LOOKS]
        self._coming[: len(first)] = [shard for shard in first if not self._files.is_present(shard)]
        n_on_disk = n_announced - len(self._coming)
        self._files.counters.add({Count.LOOKS: 1, Count.ANNOUNCED: n_announced, Count.ON_DISK: n_on_disk})

    def _is_due(self, position: int) -> bool:
        return self._renew_at is not None and position >= self._renew_at

    def _worth_it(self, shards: Sequence[int]) -> Sequence[int]:
        sparse = self._sparse
        return shards if sparse is None else [shard for shard in shards if not sparse[shard]]


# --- segments


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
