"""What a process's waits for the fetcher are told to: the counters, and whoever shows that they go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from streaming.fetch.wire import Announce, ReadObject, ReadRanges, Request, Wait
from streaming.formats.names import INDEX_NAME
from streaming.read.telemetry.counters import Count, SharedCounters


class Display(Protocol):
    """Shows how far something is that takes long."""

    def tick(self, *, is_waiting: bool) -> None:
        """Time has passed; `is_waiting`: in a wait that goes on."""
        ...


class Waits:
    """The observer of a client. Safe between threads; pickles with its counters."""

    def __init__(self, counters: SharedCounters) -> None:
        self._counters = counters
        self._here = threading.local()

    def pending(self) -> None:
        """See WaitObserver."""
        self._tick(is_waiting=True)

    def ended(self, request: Request, waited_s: float) -> None:
        """See WaitObserver."""
        self._counters.waited(_count_of(request), waited_s)
        self._tick(is_waiting=False)

    @contextlib.contextmanager
    def shown(self, display: Display) -> Iterator[None]:
        """In the block, this thread's waits move this display on."""
        self._here.display = display
        try:
            yield
        finally:
            self._here.display = None

    def _tick(self, *, is_waiting: bool) -> None:
        display: Display | None = getattr(self._here, "display", None)
        if display is not None:
            display.tick(is_waiting=is_waiting)

    def __reduce__(self) -> tuple[Any, ...]:
        return Waits, (self._counters,)


def _count_of(request: Request) -> Count:
    if isinstance(request, Wait):
        return Count.INDEX_S if request.file.name == INDEX_NAME else Count.SHARDS_S
    if isinstance(request, ReadRanges):
        return Count.RANGES_S
    if isinstance(request, ReadObject):  # as an index is read that cannot be placed
        return Count.INDEX_S
    is_of_indexes = isinstance(request, Announce) and any(file.name == INDEX_NAME for file in request.files[:1])
    return Count.INDEX_S if is_of_indexes else Count.FETCHER_S
