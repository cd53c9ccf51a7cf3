"""Requests that are no files of the cache: uploads, small objects, lists, ranges. Each has a ticket till its answer."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from streaming.errors import FetchError, StreamingError
from streaming.fetch.log import log
from streaming.fetch.protocol import Answer, Done, Failed, Pending
from streaming.fetch.task import Moved

_MAX_KEPT_BYTES: Final = 256 << 20  # of answers that nobody has asked for yet
_MAX_KEPT: Final = 4096


@dataclass(slots=True)
class _Errand:
    job: str
    moved: Moved = field(default_factory=Moved)
    event: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None

    @property
    def n_bytes(self) -> int:
        return len(self.answer.payload) if isinstance(self.answer, Done) else 0


class Errands:
    """Owns what was begun under a ticket, until its answer has been given or its job is gone.

    Of answers that nobody asks for, the oldest are dropped when they are too much: who asks later has it done again.
    """

    def __init__(self, n_at_once: int, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        self._lock = threading.Lock()
        self._errands: dict[str, _Errand] = {}
        self._kept: dict[str, _Errand] = {}  # of these, what is answered, oldest first
        self._max_kept_bytes = max_kept_bytes
        self._slots = threading.BoundedSemaphore(n_at_once)

    def answer(self, job: str, ticket: str, run: Callable[[Moved], Done], *, slice_s: float) -> Answer:
        """The answer of the errand with this ticket, begun now if it is new; Pending after `slice_s`."""
        with self._lock:
            errand = self._errands.get(ticket)
            if is_new := errand is None:
                errand = self._errands[ticket] = _Errand(job)
        assert errand is not None
        if is_new:
            self._begin(ticket, errand, run)
        if not errand.event.wait(slice_s):
            return Pending(errand.moved.token)
        with self._lock:
            self._drop(ticket)
        assert errand.answer is not None
        return errand.answer

    def forget(self, job: str) -> None:
        """Nobody of this job is there to ask for an answer; what runs ends, and is not kept."""
        with self._lock:
            for ticket in [ticket for ticket, errand in self._errands.items() if errand.job == job]:
                self._drop(ticket)

    @property
    def n_kept(self) -> int:
        """What is under way, or answered and not asked for."""
        return len(self._errands)

    def _begin(self, ticket: str, errand: _Errand, run: Callable[[Moved], Done]) -> None:
        try:
            threading.Thread(target=self._run, args=(ticket, errand, run), name="errand", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._drop(ticket)
            raise FetchError(
                f"the fetcher can begin no more at once: {error}; the limit of processes is low"
            ) from error

    def _run(self, ticket: str, errand: _Errand, run: Callable[[Moved], Done]) -> None:
        try:
            with self._slots:
                errand.answer = run(errand.moved)
        except StreamingError as error:
            errand.answer = Failed(error)
        except Exception as error:
            log(traceback.format_exc())
            errand.answer = Failed(FetchError(f"the fetcher failed with {error!r}; its log has the details"))
        with self._lock:
            if self._errands.get(ticket) is errand:
                self._kept[ticket] = errand
                self._drop_oldest()
        errand.event.set()

    def _drop(self, ticket: str) -> None:
        self._errands.pop(ticket, None)
        self._kept.pop(ticket, None)

    def _drop_oldest(self) -> None:
        n_bytes = sum(errand.n_bytes for errand in self._kept.values())
        for ticket, errand in list(self._kept.items())[:-1]:
            if n_bytes <= self._max_kept_bytes and len(self._kept) <= _MAX_KEPT:
                return
            n_bytes -= errand.n_bytes
            self._drop(ticket)
