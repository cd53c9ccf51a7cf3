"""What to do about a sample whose shard is not open: wait for the shard, or have the sample alone."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from streaming.errors import CacheWriteError, DeadlineError, NoRoomError, StorageError
from streaming.fetch.decide.ranges import FileFacts, Verdict, decide
from streaming.fetch.wire import RangeAsk, Reason
from streaming.read.shards.files import ShardFiles
from streaming.read.shards.pool import OpenShard, ShardPool
from streaming.read.shards.range_reader import PartialShards, RangeReader

_log: Final = logging.getLogger("streaming")

_PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 0.05
_told: Final[set[tuple[str, type[Exception]]]] = set()
"""Folders of which it was said, and why, that shards cannot be placed there: once in a process."""


class SampleFinder:
    """Finds what has a sample. Safe between threads; what a thread has partials is its own."""

    def __init__(self, files: ShardFiles, pool: ShardPool, ranges: RangeReader, *, keeps_open: bool) -> None:
        self._files = files
        self._pool = pool
        self._ranges = ranges
        self._keeps_open = keeps_open
        self._mine = threading.local()
        self.without_room: set[int] = set()
        """Shards that could not be placed on disk when they were last waited for."""

    def is_open(self, shard: int) -> bool:
        """Whether the shard is open, so that nothing needs to be found."""
        return shard in self._pool.open_shards

    def find(self, shard: int, row: int) -> OpenShard:
        """For random access: what is at hand, else the sample alone, else its shard, waited for.

        Who asks for row after row gets the shard: one by one they would cost a round trip each.
        """
        partials: PartialShards = getattr(self._mine, "partials", {})
        held = partials.get(shard)
        if held is not None and row in held:
            return held
        if self._files.by_parts[shard] and not self._files.is_present(shard):
            ask = RangeAsk(Reason.RANDOM, n_samples=1, n_steps=self._steps(shard, row))
            if decide(ask, FileFacts(is_present=False), None, self._ranges.client.rules) is Verdict.GRANT:
                held = self._ranges.read({shard: [row]}, ask).get(shard)
                if held is not None:
                    return held
        return self.wait(shard, [row], keep=self._keeps_open)

    def wait(
        self,
        shard: int,
        rows: Sequence[int],
        *,
        keep: bool = True,
        alone: bool = False,
        let_go: Callable[[], None] | None = None,
    ) -> OpenShard:
        """The shard, waited for; if it cannot be placed on disk, `rows` of it, at least the first.

        `alone`: the cache is so small that a shard which is not there would take the room of one that is needed as
        soon: the rows alone, if they can be had so. `let_go` gives up what the reader itself keeps in the cache.

        Raises what the fetcher answers; NoRoomError and CacheWriteError only of shards that cannot be read by parts,
        the first after some time.
        """
        gives_up_s = time.monotonic() + _PATIENCE_S
        if alone and self._files.by_parts[shard] and not self._files.is_present(shard):
            self.without_room.add(shard)
            held = self._ranges.read({shard: rows}, RangeAsk(Reason.NO_ROOM)).get(shard)
            if held is not None and rows[0] in held:
                return held
        while True:
            try:
                opened = self._pool.open(shard, keep=keep)
            except (NoRoomError, CacheWriteError) as error:
                if let_go is not None:
                    let_go()
                is_over = isinstance(error, CacheWriteError) or time.monotonic() > gives_up_s
                if not self._files.by_parts[shard] and is_over:
                    raise
                problem = error
            else:
                self.without_room.discard(shard)
                return opened
            if self._files.by_parts[shard]:
                self._tell(shard, problem)
                self.without_room.add(shard)
                held = self._ranges.read({shard: rows}, RangeAsk(Reason.NO_ROOM)).get(shard)
                if held is not None and rows[0] in held:
                    return held
            if time.monotonic() > gives_up_s:  # it is there when its bytes are asked for, and gone when it is opened
                raise DeadlineError(
                    f"{self._files.name(shard)} comes and goes for {_PATIENCE_S:.0f} s: who else is here?"
                )
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def using(self, partials: PartialShards) -> Iterator[None]:
        """In the block, `find` in this thread finds also what is partials."""
        before = getattr(self._mine, "partials", {})
        self._mine.partials = partials
        try:
            yield
        finally:
            self._mine.partials = before

    def _steps(self, shard: int, row: int) -> int:
        """How many rows this thread has asked for in sequence, up to this one."""
        last_shard, last_row, n_steps = getattr(self._mine, "walk", (-1, -1, 0))
        is_step = (shard, row) in ((last_shard, last_row + 1), (last_shard + 1, 0))
        n_steps = n_steps + 1 if is_step else 0
        self._mine.walk = shard, row, n_steps
        return n_steps

    def _tell(self, shard: int, error: StorageError) -> None:
        folder = self._files.folder(shard)
        if (folder, type(error)) not in _told:
            _told.add((folder, type(error)))
            _log.warning("%s; until then samples of shards that cannot be placed there are read from the store", error)
