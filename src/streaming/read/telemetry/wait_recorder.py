"""A client's waits for the fetcher: counted, and heard by what shows them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from streaming.fetch.wire import INDEXES, Announce, ReadObject, ReadRanges, Request, Wait
from streaming.formats.names import INDEX_NAME
from streaming.read.telemetry.counters import Count, SharedCounters


class WaitRecorder:
    """The observer of a client, which counts its waits. Safe between threads. Pickles with its counters alone."""

    def __init__(self, counters: SharedCounters) -> None:
        self._counters = counters
        self._here = threading.local()

    @contextlib.contextmanager
    def heard_by(self, listener: Callable[[bool], None]) -> Iterator[None]:
        """In the block, call `listener(is_pending)` about once a second of this thread's waits, and after each."""
        self._here.listener = listener
        try:
            yield
        finally:
            self._here.listener = None

    def pending(self) -> None:
        """See WaitObserver."""
        self._call_listener(is_pending=True)

    def ended(self, request: Request, waited_s: float) -> None:
        """See WaitObserver."""
        self._counters.add_wait(_count_of(request), waited_s)
        self._call_listener(is_pending=False)

    def _call_listener(self, *, is_pending: bool) -> None:
        listener: Callable[[bool], None] | None = getattr(self._here, "listener", None)
        if listener is not None:
            listener(is_pending)

    def __reduce__(self) -> tuple[Any, ...]:
        return WaitRecorder, (self._counters,)


def _count_of(request: Request) -> Count:
    if isinstance(request, Wait):
        return Count.INDEX_S if request.file.name == INDEX_NAME else Count.SHARDS_S
    if isinstance(request, ReadRanges):
        return Count.RANGES_S
    # An object is read without the cache if it is an index that has no place there.
    is_index = isinstance(request, ReadObject) or (isinstance(request, Announce) and request.reader == INDEXES)
    return Count.INDEX_S if is_index else Count.FETCHER_S
