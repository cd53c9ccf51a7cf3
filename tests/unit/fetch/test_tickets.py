"""What is begun under a ticket: done once, given once, and not kept for ever."""

from __future__ import annotations

import threading

import pytest

from streaming.errors import FetchError, ObjectMissingError
from streaming.fetch.server.tickets import Tickets
from streaming.fetch.transfer.stores import TransferProgress
from streaming.fetch.wire.protocol import Done, Failed, Pending

LONG_S = 30.0


class Work:
    """Something to be done, which waits until it may go on."""

    def __init__(self, payload: bytes = b"") -> None:
        self.payload = payload
        self.n_begun = 0
        self.may_end = threading.Event()

    def __call__(self, moved: TransferProgress) -> Done:
        self.n_begun += 1
        moved.n_attempts += 1
        self.may_end.wait(LONG_S)
        return Done(self.n_begun, self.payload)


def done_at_once(payload: bytes = b"") -> Work:
    work = Work(payload)
    work.may_end.set()
    return work


def test_asking_again_joins_what_was_begun() -> None:
    """From any connection; when the answer has been given, the ticket means nothing any more."""
    tickets, work = Tickets(4), Work()
    first = tickets.answer("job", "t", work, slice_s=0.0)
    assert isinstance(first, Pending)
    work.may_end.set()
    assert tickets.answer("job", "t", work, slice_s=LONG_S) == Done(1)
    assert tickets.n_kept == 0
    assert tickets.answer("job", "t", work, slice_s=LONG_S) == Done(2)


def test_a_ticket_of_a_job_that_is_gone_is_forgotten() -> None:
    """Whether its work goes on or has ended; others stay."""
    tickets, ended, running, other = Tickets(4), done_at_once(), Work(), done_at_once()
    assert tickets.answer("other", "c", other, slice_s=LONG_S) == Done(1)
    for job, ticket, work in (("gone", "a", ended), ("gone", "b", running), ("other", "d", running)):
        tickets.answer(job, ticket, work, slice_s=0.0)
    tickets.forget("gone")
    assert tickets.n_kept == 1
    running.may_end.set()
    assert isinstance(tickets.answer("other", "d", running, slice_s=LONG_S), Done)
    assert tickets.n_kept == 0


def test_of_what_nobody_asks_for_the_oldest_goes() -> None:
    """Readers that jump leave ranges behind; who asks all the same has them fetched again."""
    tickets = Tickets(4, max_kept_bytes=250)
    works = [Work(bytes(100)) for _ in range(4)]
    for number, work in enumerate(works):
        tickets.answer("job", str(number), work, slice_s=0.0)
        work.may_end.set()
        _until_ended()
    assert tickets.n_kept == 2
    assert tickets.answer("job", "3", works[3], slice_s=LONG_S) == Done(1, bytes(100))
    assert tickets.answer("job", "0", works[0], slice_s=LONG_S) == Done(2, bytes(100))


def _until_ended() -> None:
    for thread in threading.enumerate():
        if thread.name == "ticket":
            thread.join(LONG_S)


def test_an_error_is_an_answer() -> None:
    """Of its own kind; what nobody foresaw says so."""
    tickets = Tickets(1)

    def missing(_: TransferProgress) -> Done:
        raise ObjectMissingError("no such thing")

    def broken(_: TransferProgress) -> Done:
        raise ZeroDivisionError

    assert isinstance(tickets.answer("job", "a", missing, slice_s=LONG_S), Failed)
    answer = tickets.answer("job", "b", broken, slice_s=LONG_S)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, FetchError)
    assert "ZeroDivisionError" in str(answer.error)


def test_where_no_thread_can_be_had_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next who asks with this ticket does not wait for what was never begun."""
    tickets, work = Tickets(1), done_at_once()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(FetchError, match="limit of processes"):
            tickets.answer("job", "t", work, slice_s=LONG_S)
    assert tickets.answer("job", "t", work, slice_s=LONG_S) == Done(1)
