"""Requests that are no files of the cache: uploads, small objects, lists, ranges. Each has a ticket till its answer."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from streaming.errors import FetchError, StreamingError
from streaming.fetch.engine import log
from streaming.fetch.protocol import Answer, Done, Failed, Pending
from streaming.fetch.transfer import Moved


@dataclass(slots=True)
class _Errand:
    job: str
    moved: Moved = field(default_factory=Moved)
    event: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None


class Errands:
    """Owns what was begun under a ticket, until its answer has been given or its job is gone."""

    def __init__(self, n_at_once: int) -> None:
        self._lock = threading.Lock()
        self._errands: dict[str, _Errand] = {}
        self._slots = threading.BoundedSemaphore(n_at_once)

    def answer(self, job: str, ticket: str, run: Callable[[Moved], Done], *, slice_s: float) -> Answer:
        """The answer of the errand with this ticket, begun now if it is new; Pending after `slice_s`."""
        with self._lock:
            errand = self._errands.get(ticket)
            if is_new := errand is None:
                errand = self._errands[ticket] = _Errand(job)
        assert errand is not None
        if is_new:
            threading.Thread(target=self._run, args=(errand, run), name="errand", daemon=True).start()
        if not errand.event.wait(slice_s):
            return Pending(errand.moved.token)
        with self._lock:
            self._errands.pop(ticket, None)
        assert errand.answer is not None
        return errand.answer

    def forget(self, job: str) -> None:
        """Nobody of this job is there to ask for an answer; what runs ends, and is not kept."""
        with self._lock:
            for ticket in [ticket for ticket, errand in self._errands.items() if errand.job == job]:
                del self._errands[ticket]

    def _run(self, errand: _Errand, run: Callable[[Moved], Done]) -> None:
        try:
            with self._slots:
                errand.answer = run(errand.moved)
        except StreamingError as error:
            errand.answer = Failed(error)
        except Exception as error:
            log(traceback.format_exc())
            errand.answer = Failed(FetchError(f"the fetcher failed with {error!r}; its log has the details"))
        errand.event.set()
