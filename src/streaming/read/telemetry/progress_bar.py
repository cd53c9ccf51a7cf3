"""A line on the terminal while something takes long. Never a line anywhere else."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, TextIO

from streaming.read.telemetry.waits import Waits

_AFTER_S: Final = 1.0
_PAUSE_S: Final = 0.1


class ProgressBar:
    """How many of how many, by `progress`, asked when it is drawn; nothing in the first second. For one thread.

    `note`: more words, asked for only while a wait goes on, since that may take a message.
    """

    def __init__(self, title: str, unit: str, progress: Callable[[], tuple[int, int]], note: Callable[[], str]) -> None:
        self._title, self._unit = title, unit
        self._progress, self._note = progress, note
        self._began_s = self._drawn_s = time.monotonic()
        self._line: Any = None

    def tick(self, *, is_waiting: bool) -> None:
        """See Display."""
        now_s = time.monotonic()
        if now_s - self._began_s < _AFTER_S or now_s - self._drawn_s < _PAUSE_S:
            return
        self._drawn_s = now_s
        n, total = self._progress()
        note = self._note() if is_waiting else None
        with _unless_gone():
            if self._line is None:
                self._line = _new_line(self._title, self._unit, total)
                self._line.start_t -= now_s - self._began_s
            if note is not None:
                self._line.set_postfix_str(note, refresh=False)
            self._line.n = n
            self._line.refresh()

    def wipe(self) -> None:
        """Leave the terminal to others for now."""
        if self._line is not None:
            with _unless_gone():
                self._line.clear()

    def close(self) -> None:
        """Wipe the line for good."""
        if self._line is not None:
            with _unless_gone():
                self._line.close()


def _unless_gone() -> AbstractContextManager[None]:
    """Nobody fails because a terminal was closed."""
    return suppress(OSError, ValueError)


def is_terminal() -> bool:
    """Whether somebody sees what is drawn on the standard error."""
    stream: TextIO | None = sys.stderr
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


@contextmanager
def shown(
    waits: Waits, title: str, unit: str, progress: Callable[[], tuple[int, int]], note: Callable[[], str]
) -> Iterator[ProgressBar]:
    """In the block, a bar moves on with this thread's waits."""
    bar = ProgressBar(title, unit, progress, note)
    try:
        with waits.shown(bar):
            yield bar
    finally:
        bar.close()


def _new_line(title: str, unit: str, total: int) -> Any:
    from tqdm import tqdm  # here, since hardly any process ever draws a line

    class Line(tqdm):  # type: ignore[type-arg]  # generic for type checkers only
        """Without what tqdm shares between processes (a semaphore) and runs beside them (a thread): readers fork."""

        monitor_interval = 0
        _lock = threading.RLock()

    size = os.get_terminal_size(sys.stderr.fileno())
    shape = "{desc}: {n_fmt} of {total_fmt} {unit} |{bar}| {elapsed}{postfix}"
    return Line(
        desc=title,
        total=total,
        unit=unit,
        bar_format=shape,
        file=sys.stderr,
        leave=False,
        mininterval=0,
        ncols=size.columns or 80,  # some terminals say 0, for which tqdm would draw nothing
        nrows=size.lines or 24,
    )
