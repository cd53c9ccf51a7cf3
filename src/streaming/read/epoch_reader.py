"""From stretches of an epoch to its samples, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streaming.read.epoch_staging import EpochStaging
from streaming.read.finding import SampleFinder
from streaming.read.meter import Lap
from streaming.read.read_ahead import ReadAhead
from streaming.read.shard_reader import OpenShard, ShardPool
from streaming.read.staging import Staged, StagedShard
from streaming.read.stretches import Stretch


class EpochReader:
    """Reads stretches of an epoch.

    `staging` and `ahead`: None where nothing needs fetching. `keeps_one`: the cache is so small that no shard stays
    open when another is needed. `get(sample_id)` makes a sample where the user's class does so; None: straight from
    the shard. `lap` begins to measure.
    """

    def __init__(
        self,
        pool: ShardPool,
        finder: SampleFinder,
        staging: EpochStaging | None,
        ahead: ReadAhead | None,
        get: Callable[[int], Any] | None,
        lap: Callable[[], Lap],
        *,
        keeps_one: bool = False,
    ) -> None:
        self._pool = pool
        self._finder = finder
        self._staging = staging
        self._ahead = ahead
        self._get = get
        self._lap = lap
        self._keeps_one = keeps_one

    def samples(self, stretches: Iterator[Stretch]) -> Iterator[Any]:
        """The samples of these stretches, in order."""
        staging, lap = self._staging, self._lap()
        parts = ((stretch, {}) for stretch in stretches) if staging is None else staging.staged(stretches)
        for stretch, staged in parts:
            if self._get is None:
                yield from self._read(stretch, staged)
            elif stretch.is_complete:
                yield from map(self._get, stretch.ids.tolist())
            else:
                yield from self._made(stretch, staged, self._get)
            if self._keeps_one:
                self._pool.keep_only((), at_once=True)
            elif stretch.done:
                self._pool.drop(stretch.done)
            lap.ended(stretch.shards)

    def _read(self, stretch: Stretch, staged: Staged) -> Iterator[Any]:
        open_shards = self._pool.open_shards
        for shard, row in zip(stretch.shards.tolist(), stretch.rows.tolist()):
            opened = open_shards.get(shard)
            if opened is None:
                opened = self._find(shard, row, stretch, staged)
            yield opened.sample(row)

    def _made(self, stretch: Stretch, staged: Staged, get: Callable[[int], Any]) -> Iterator[Any]:
        """Made by the user's class, which reads by number: what it will ask for is brought to hand before."""
        for sample_id, shard, row in zip(stretch.ids.tolist(), stretch.shards.tolist(), stretch.rows.tolist()):
            if shard not in self._pool.open_shards:
                self._find(shard, row, stretch, staged)
            with self._finder.using(staged):
                sample = get(sample_id)
            yield sample

    def _find(self, shard: int, row: int, stretch: Stretch, staged: Staged) -> OpenShard:
        """What has this sample: what has come of it, or its shard, waited for."""
        held = staged.get(shard)
        if held is not None and row in held:
            return held
        if self._keeps_one:
            self._pool.keep_only((), at_once=True)
        rows = dict.fromkeys([row, *stretch.rows[stretch.shards == shard].tolist()])
        opened = self._finder.wait(shard, list(rows), alone=self._keeps_one, let_go=self._let_go)
        if isinstance(opened, StagedShard):  # there was no room for the shard
            staged[shard] = opened
        return opened

    def _let_go(self) -> None:
        """There is no room: under a limit, what this reader keeps in the cache may go."""
        if self._ahead is not None and self._ahead.is_limited:
            self._pool.keep_only((), at_once=True)
            self._ahead.let_go()
