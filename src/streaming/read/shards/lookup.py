"""How to get a sample whose shard is not open: wait for the shard, or fetch the sample alone."""

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
from streaming.read.shards.range_reader import PartialShard, PartialShards, RangeReader

_log: Final = logging.getLogger("streaming")

_PAUSE_S: Final = 0.05
_said_once: Final[set[tuple[str, type[Exception]]]] = set()
"""Folders in which shards cannot be placed, and why: this process has warned of them."""


class SampleLookup:
    """Gets the shard, or the part of a shard, that has a sample. Safe between threads."""

    def __init__(self, files: ShardFiles, pool: ShardPool, ranges: RangeReader, *, keeps_open: bool) -> None:
        """`keeps_open`: shards that random access waits for stay open."""
        self._files = files
        self._pool = pool
        self._ranges = ranges
        self._keeps_open = keeps_open
        self._mine = threading.local()
        self.without_room: set[int] = set()
        """Shards that could not be placed on disk when they were last waited for."""

    def is_absent(self, shard: int) -> bool:
        """Whether the shard is neither open nor on disk, and its samples can come by range."""
        files = self._files
        return bool(files.by_parts[shard]) and shard not in self._pool.open_shards and not files.is_present(shard)

    def find(self, shard: int, row: int) -> OpenShard:
        """For random access: what is at hand, else the sample alone, else its shard, waited for.

        A thread that asks for row after row gets the shard: sample by sample would cost a round trip each.
        """
        partials: PartialShards = getattr(self._mine, "partials", {})
        held = partials.get(shard)
        if held is not None and row in held:
            return held
        if self.is_absent(shard):
            ask = RangeAsk(Reason.RANDOM, n_samples=1, n_steps=self._steps(shard, row))
            if decide(ask, FileFacts(is_present=False), None, self._ranges.rules) is Verdict.GRANT:
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
        """Wait for the shard; where it cannot be placed on disk, for `rows` of it, at least the first.

        `alone`: the cache is so small that an absent shard would take the room of one that is needed as soon, so the
        rows come alone if they can. `let_go` gives up what the reader itself keeps in the cache.

        Raises what the fetcher answers. NoRoomError and CacheWriteError come only from shards that cannot be read by
        parts, the first of them after the patience of `files`.
        """
        by_parts = bool(self._files.by_parts[shard])
        gives_up_s = time.monotonic() + self._files.patience_s
        if alone and self.is_absent(shard):
            held = self._read_alone(shard, rows)
            if held is not None:
                return held
        while True:
            try:
                opened = self._pool.open(shard, keep=keep)
            except (NoRoomError, CacheWriteError) as error:
                if let_go is not None:
                    let_go()
                is_over = isinstance(error, CacheWriteError) or time.monotonic() > gives_up_s
                if not by_parts and is_over:
                    raise
                problem = error
            else:
                self.without_room.discard(shard)
                return opened
            if by_parts:
                self._warn_once(shard, problem)
                held = self._read_alone(shard, rows)
                if held is not None:
                    return held
            if time.monotonic() > gives_up_s:  # on disk whenever its bytes are asked for, gone whenever it is opened
                raise DeadlineError(
                    f"{self._files.name(shard)} came to {self._files.folder(shard)} again and again for "
                    f"{self._files.patience_s:.0f} s and was gone whenever it was opened: something else deletes files "
                    "there, or the cache is too small"
                )
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def using(self, partials: PartialShards) -> Iterator[None]:
        """In the block, `find` also finds the samples of `partials`, in this thread."""
        before = getattr(self._mine, "partials", {})
        self._mine.partials = partials
        try:
            yield
        finally:
            self._mine.partials = before

    def _read_alone(self, shard: int, rows: Sequence[int]) -> PartialShard | None:
        """Rows of a shard without room; None if the first has not come, since the shard is on disk by now."""
        self.without_room.add(shard)
        held = self._ranges.read({shard: rows}, RangeAsk(Reason.NO_ROOM)).get(shard)
        return held if held is not None and rows[0] in held else None

    def _steps(self, shard: int, row: int) -> int:
        """Count the rows that this thread has asked for in sequence, up to this one."""
        last_shard, last_row, n_steps = getattr(self._mine, "walk", (-1, -1, 0))
        is_step = (shard, row) in ((last_shard, last_row + 1), (last_shard + 1, 0))
        n_steps = n_steps + 1 if is_step else 0
        self._mine.walk = shard, row, n_steps
        return n_steps

    def _warn_once(self, shard: int, error: StorageError) -> None:
        said = self._files.folder(shard), type(error)
        if said not in _said_once:
            _said_once.add(said)
            _log.warning("%s; until then samples of shards that cannot be placed there are read from the store", error)
