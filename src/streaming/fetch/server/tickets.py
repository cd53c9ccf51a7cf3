"""Work that concerns no file of the cache: uploads, small objects, lists, ranges. Each has a ticket till its answer."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from streaming.errors import FetchError, StreamingError
from streaming.fetch.transfer.log import log
from streaming.fetch.transfer.stores import TransferProgress
from streaming.fetch.wire.protocol import Answer, Done, Failed, Pending

_MAX_KEPT_BYTES: Final = 256 << 20
"""Bytes of answers that nobody has asked for yet."""
_MAX_KEPT: Final = 4096


@dataclass(slots=True)
class Ticket:
    """Work under way, and its answer."""

    job: str
    progress: TransferProgress = field(default_factory=TransferProgress)
    event: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes that the answer holds."""
        return len(self.answer.payload) if isinstance(self.answer, Done) else 0


class Tickets:
    """Owns the work that was begun under a name, until its answer has been given or its job has gone.

    When answers that nobody asks for are too much, the oldest are dropped: a client that asks later has the work done
    again.
    """

    def __init__(self, n_at_once: int, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        self._lock = threading.Lock()
        self._tickets: dict[str, Ticket] = {}
        self._kept: dict[str, Ticket] = {}  # those that are answered, oldest first
        self._max_kept_bytes = max_kept_bytes
        self._slots = threading.BoundedSemaphore(n_at_once)

    def answer(self, job: str, name: str, run: Callable[[TransferProgress], Done], *, slice_s: float) -> Answer:
        """The answer of the work of this name, begun now if it is new; Pending after `slice_s`."""
        with self._lock:
            ticket = self._tickets.get(name)
            is_new = ticket is None
            if ticket is None:
                ticket = self._tickets[name] = Ticket(job)
        if is_new:
            self._begin(name, ticket, run)
        if not ticket.event.wait(slice_s):
            return Pending(ticket.progress.token)
        with self._lock:
            self._drop(name)
        assert ticket.answer is not None
        return ticket.answer

    def forget(self, job: str) -> None:
        """Nobody of this job is there to ask for an answer; work under way ends, and its answer is not kept."""
        with self._lock:
            for name in [name for name, ticket in self._tickets.items() if ticket.job == job]:
                self._drop(name)

    @property
    def n_kept(self) -> int:
        """Tickets of work under way, or answered and not asked for."""
        return len(self._tickets)

    def _begin(self, name: str, ticket: Ticket, run: Callable[[TransferProgress], Done]) -> None:
        try:
            threading.Thread(target=self._run, args=(name, ticket, run), name="ticket", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._drop(name)
            raise FetchError(
                f"the fetcher can begin no more at once: {error}; the limit of processes is low"
            ) from error

    def _run(self, name: str, ticket: Ticket, run: Callable[[TransferProgress], Done]) -> None:
        try:
            with self._slots:
                ticket.answer = run(ticket.progress)
        except StreamingError as error:
            ticket.answer = Failed(error)
        except Exception as error:
            log(traceback.format_exc())
            ticket.answer = Failed(FetchError(f"the fetcher failed with {error!r}; its log has the details"))
        with self._lock:
            if self._tickets.get(name) is ticket:
                self._kept[name] = ticket
                self._drop_oldest()
        ticket.event.set()

    def _drop(self, name: str) -> None:
        self._tickets.pop(name, None)
        self._kept.pop(name, None)

    def _drop_oldest(self) -> None:
        n_bytes = sum(ticket.n_bytes for ticket in self._kept.values())
        for name, ticket in list(self._kept.items())[:-1]:
            if n_bytes <= self._max_kept_bytes and len(self._kept) <= _MAX_KEPT:
                return
            n_bytes -= ticket.n_bytes
            self._drop(name)
