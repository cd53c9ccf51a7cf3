"""From segments of an epoch to its samples, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streaming.read.epoch.early_ranges import EarlyRanges
from streaming.read.epoch.read_ahead import ReadAhead
from streaming.read.epoch.segments import Segment
from streaming.read.shards.lookup import SampleFinder
from streaming.read.shards.pool import OpenShard, ShardPool
from streaming.read.shards.range_reader import PartialShard, PartialShards
from streaming.read.telemetry.counters import Stopwatch


class EpochReader:
    """Reads segments of an epoch.

    `early` and `ahead`: None where nothing needs fetching. `keeps_one`: the cache is so small that no shard stays
    open when another is needed. `get(sample_id)` makes a sample where the user's class does so; None: straight from
    the shard. `stopwatch` begins to measure.
    """

    def __init__(
        self,
        pool: ShardPool,
        finder: SampleFinder,
        early: EarlyRanges | None,
        ahead: ReadAhead | None,
        get: Callable[[int], Any] | None,
        stopwatch: Callable[[], Stopwatch],
        *,
        keeps_one: bool = False,
    ) -> None:
        self._pool = pool
        self._finder = finder
        self._early = early
        self._ahead = ahead
        self._get = get
        self._stopwatch = stopwatch
        self._keeps_one = keeps_one

    def samples(self, segments: Iterator[Segment]) -> Iterator[Any]:
        """The samples of these segments, in order."""
        early, stopwatch = self._early, self._stopwatch()
        parts = ((segment, {}) for segment in segments) if early is None else early.segments(segments)
        for segment, partials in parts:
            if self._get is None:
                yield from self._read(segment, partials)
            elif segment.is_complete:
                yield from map(self._get, segment.ids.tolist())
            else:
                yield from self._made(segment, partials, self._get)
            if self._keeps_one:
                self._pool.keep_only((), at_once=True)
            elif segment.done:
                self._pool.drop(segment.done)
            stopwatch.ended(segment.shards)

    def _read(self, segment: Segment, partials: PartialShards) -> Iterator[Any]:
        open_shards = self._pool.open_shards
        for shard, row in zip(segment.shards.tolist(), segment.rows.tolist()):
            opened = open_shards.get(shard)
            if opened is None:
                opened = self._find(shard, row, segment, partials)
            yield opened.sample(row)

    def _made(self, segment: Segment, partials: PartialShards, get: Callable[[int], Any]) -> Iterator[Any]:
        """Made by the user's class, which reads by number: what it will ask for is brought to hand before."""
        for sample_id, shard, row in zip(segment.ids.tolist(), segment.shards.tolist(), segment.rows.tolist()):
            if shard not in self._pool.open_shards:
                self._find(shard, row, segment, partials)
            with self._finder.using(partials):
                sample = get(sample_id)
            yield sample

    def _find(self, shard: int, row: int, segment: Segment, partials: PartialShards) -> OpenShard:
        """What has this sample: what has come of it, or its shard, waited for."""
        held = partials.get(shard)
        if held is not None and row in held:
            return held
        if self._keeps_one:
            self._pool.keep_only((), at_once=True)
        rows = dict.fromkeys([row, *segment.rows[segment.shards == shard].tolist()])
        opened = self._finder.wait(shard, list(rows), alone=self._keeps_one, let_go=self._let_go)
        if isinstance(opened, PartialShard):  # there was no room for the shard
            partials[shard] = opened
        return opened

    def _let_go(self) -> None:
        """There is no room: under a limit, what this reader keeps in the cache may go."""
        if self._ahead is not None and self._ahead.is_limited:
            self._pool.keep_only((), at_once=True)
            self._ahead.let_go()
