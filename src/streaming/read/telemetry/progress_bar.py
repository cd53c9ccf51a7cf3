"""A line on the terminal while a run waits for its first data. Nothing is written where nobody looks."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from streaming.errors import StreamingError
from streaming.fetch.client import FetchClient
from streaming.read.telemetry.counters import WaitRecorder
from streaming.units import shown_bytes

_AFTER_S: Final = 1.0  # what takes less shows nothing
_PAUSE_S: Final = 0.1
_N_CELLS: Final = 20


@contextmanager
def indexes_shown(waits: WaitRecorder, client: FetchClient, paths: Sequence[str]) -> Iterator[None]:
    """In the block, show how many of those of these files have come that are missing now."""
    missing = [path for path in paths if not os.path.exists(path)] if _is_terminal() else []
    if not missing:
        yield
        return
    bar = ProgressBar(client, "fetching", "indexes", lambda: (sum(map(os.path.exists, missing)), len(missing)))
    with bar.moved_by(waits):
        yield


def first_samples_shown(
    samples: Iterator[Any],
    n_samples: int,
    shards: Callable[[], Sequence[int]],
    is_present: Callable[[int], bool],
    waits: WaitRecorder,
    client: FetchClient,
) -> Iterator[Any]:
    """The same samples; during waits for the first `n_samples`, show how many of their shards are on disk."""
    if not _is_terminal():
        return samples
    wanted: list[int] = []

    def progress() -> tuple[int, int]:
        if not wanted:  # planned once more, but only where it takes a second anyway
            wanted.extend(shards())
        return sum(map(is_present, wanted)), len(wanted)

    def first() -> Iterator[Any]:
        bar = ProgressBar(client, "waiting for the first samples", "shards", progress)
        with bar.moved_by(waits):
            for sample in itertools.islice(samples, n_samples):
                bar.wipe()
                yield sample

    return itertools.chain(first(), samples)


def _is_terminal() -> bool:
    """Whether somebody sees what is written to the standard error."""
    with suppress(AttributeError, ValueError):  # there is none, or it is closed
        return sys.stderr.isatty()
    return False


class ProgressBar:
    """A line that says how much of what is needed has come, and how fast. For one thread.

    `progress` returns both numbers; it is called when the line is drawn.
    """

    def __init__(self, client: FetchClient, title: str, unit: str, progress: Callable[[], tuple[int, int]]) -> None:
        self._client, self._title, self._unit, self._progress = client, title, unit, progress
        self._began_s = self._drawn_s = time.monotonic()
        self._fetched: tuple[float, int] | None = None  # when, and how many bytes by then
        self._rate = ""
        self._n_drawn = 0

    @contextmanager
    def moved_by(self, waits: WaitRecorder) -> Iterator[None]:
        """In the block, this thread's waits move the bar on."""
        try:
            with waits.heard_by(self._tick):
                yield
        finally:
            self.wipe()

    def wipe(self) -> None:
        """Leave the terminal to others until the next tick."""
        if self._n_drawn:
            self._write(f"\r{' ' * self._n_drawn}\r")
            self._n_drawn = 0

    def _tick(self, is_pending: bool) -> None:
        now_s = time.monotonic()
        if now_s - self._began_s < _AFTER_S or now_s - self._drawn_s < _PAUSE_S:
            return
        self._drawn_s = now_s
        if is_pending:  # asking may take a message
            self._measure(now_s)
        n, total = self._progress()
        cells = "#" * (_N_CELLS * n // max(1, total))
        line = f"{self._title}: {n} of {total} {self._unit} |{cells:-<{_N_CELLS}}| {now_s - self._began_s:.0f} s"
        line = f"{line}{self._rate}"[: _n_columns() - 1]
        self._write("\r" + line.ljust(self._n_drawn))
        self._n_drawn = len(line)

    def _measure(self, now_s: float) -> None:
        """The rate at which this machine's fetcher has brought bytes since the last time."""
        with suppress(StreamingError):  # raised where the data is waited for
            numbers = self._client.status_if_any()
            if numbers is not None:
                n_bytes = numbers["bytes"] + numbers["moving_bytes"]
                if self._fetched is not None:
                    then_s, n_before = self._fetched
                    self._rate = f", {shown_bytes(max(0, n_bytes - n_before) / (now_s - then_s))}/s"
                self._fetched = now_s, n_bytes

    @staticmethod
    def _write(text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal was closed
            sys.stderr.write(text)
            sys.stderr.flush()


def _n_columns() -> int:
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80  # some terminals say 0
    return 80
