"""How long training waits for its loader: measured between batches, counted, and warned of if it is too long."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from streaming.errors import ClosedError, StreamingError
from streaming.fetch.client import FetchClient
from streaming.read.telemetry.bottleneck import Cause, Fetching, WaitRules, Window, bottleneck, warning
from streaming.read.telemetry.counters import Count, Reading, SharedCounters
from streaming.read.telemetry.stats import FetcherStats

_log: Final = logging.getLogger("streaming")

_COUNT_EVERY_S: Final = 0.1  # batches may be as short as a clock's tick


@dataclass(slots=True)
class _Times:
    """Sums over some batches."""

    n_batches: int = 0
    waited_s: float = 0.0
    worked_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.waited_s + self.worked_s

    def add(self, waited_s: float, worked_s: float) -> None:
        self.n_batches += 1
        self.waited_s += waited_s
        self.worked_s += worked_s


class LoaderMonitor:
    """Measures one loader over all its epochs. For one thread.

    Batches are judged in windows, which go on over short epochs. `rules`: when a window is long enough to be judged,
    and bad enough to be warned of; None: never.
    """

    def __init__(
        self,
        counters: SharedCounters,
        client: FetchClient,
        rules: WaitRules | None,
        *,
        rank: int,
        n_workers: int,
        n_cores: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters, self._client, self._rules, self._clock = counters, client, rules, clock
        self._rank, self._n_workers, self._n_cores = rank, n_workers, n_cores
        self._shortest_s = float("inf")  # of the steps of this loader
        self._uncounted = _Times()
        self._window = _Times()
        self._read: Reading | None = None  # in the earlier parts of the window, one for each epoch
        self._started: Reading | None = None  # when the present part began
        self._fetched: tuple[float, FetcherStats] | None = None  # when the window began
        self._warned_s: dict[Cause, float] = {}

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches of one epoch, measured as they are handed out."""
        clock = self._clock
        n_left_out = 0 if self._rules is None else self._rules.n_first + self._n_workers
        worked_s: float | None = None
        asked_s = clock()
        try:
            for batch in batches:
                came_s = clock()
                if worked_s is not None and worked_s < self._shortest_s:
                    self._shortest_s = worked_s
                    self._counters.add_step(worked_s)
                self._count(came_s - asked_s, worked_s or 0.0, is_judged=n_left_out <= 0)
                n_left_out -= 1
                yield batch
                asked_s = clock()
                worked_s = asked_s - came_s
        finally:
            self._flush()
            self._end_part()

    def _count(self, waited_s: float, worked_s: float, *, is_judged: bool) -> None:
        self._uncounted.add(waited_s, worked_s)
        if self._uncounted.total_s > _COUNT_EVERY_S:
            self._flush()
        if self._rules is None or not is_judged:
            return
        if self._started is None:
            self._begin_part()
            return  # measured from here on
        self._window.add(waited_s, worked_s)
        if self._rules.is_enough(self._window.n_batches, self._window.total_s):
            self._judge(self._rules)

    def _flush(self) -> None:
        done, self._uncounted = self._uncounted, _Times()
        if done.n_batches:
            amounts = {Count.BATCHES: done.n_batches, Count.WAITED_S: done.waited_s, Count.WORKED_S: done.worked_s}
            self._counters.add(amounts)

    # --- the window

    def _begin_part(self) -> None:
        with suppress(ClosedError):  # workers may go on without their dataset
            self._started = self._counters.reading()
        if self._fetched is None:
            self._fetched = self._fetcher_stats()

    def _end_part(self) -> None:
        """Add what readers have done since the part began."""
        if self._started is None:
            return
        started, self._started = self._started, None
        with suppress(ClosedError):
            part = self._counters.reading() - started
            self._read = part if self._read is None else self._read + part

    def _judge(self, rules: WaitRules) -> None:
        self._end_part()
        done, read = self._window, self._read
        if read is None:
            return
        window = Window(
            n_batches=done.n_batches,
            waited_s=done.waited_s,
            worked_s=done.worked_s,
            n_workers=self._n_workers,
            n_cores=self._n_cores,
            load=os.getloadavg()[0] / (os.cpu_count() or 1),
            fetching_s=read[Count.SHARDS_S] + read[Count.RANGES_S] + read[Count.FETCHER_S],
            cpu_s=read[Count.CPU_S],
            idle_s=read[Count.IDLE_S],
        )
        if window.is_over(rules):
            cause = bottleneck(window, rules)
            if cause is not None:
                self._warn(cause, window, rules)
            self._window, self._read, self._fetched = _Times(), None, None
        self._begin_part()

    def _warn(self, cause: Cause, window: Window, rules: WaitRules) -> None:
        now_s = self._clock()
        if now_s - self._warned_s.get(cause, float("-inf")) < rules.again_s:
            return
        self._warned_s[cause] = now_s
        _log.warning("%s", warning(cause, window, self._rank, self._fetching()))

    # --- the fetcher

    def _fetcher_stats(self) -> tuple[float, FetcherStats] | None:
        """What it has done so far, and when that was asked; None, without asking, where nothing is fetched."""
        if not self._client.is_held:
            return None
        with suppress(StreamingError):  # raised in the readers, who need an answer
            numbers = self._client.status_if_any()
            return None if numbers is None else (self._clock(), FetcherStats.of(numbers))
        return None

    def _fetching(self) -> Fetching | None:
        """What it did during the window."""
        now = self._fetcher_stats()
        if now is None or self._fetched is None:
            return None
        (then_s, then), (now_s, done) = self._fetched, now
        bytes_per_s = max(0, done.bytes - then.bytes) / max(1e-9, now_s - then_s)
        return Fetching(bytes_per_s, done.moving, done.queued, max(0, done.evicted - then.evicted))
