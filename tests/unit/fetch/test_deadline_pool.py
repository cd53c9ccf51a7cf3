"""What is due first begins first, so much at once, each thing once."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.fetch.transfer.deadline_pool import DeadlinePool
from support.fetcher_world import wait_until

PATIENCE_S = 30.0


class Gate:
    """Keeps threads busy until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._entered = threading.Semaphore(0)

    def hold(self) -> int:
        self._entered.release()
        assert self._opened.wait(PATIENCE_S)
        return -1

    def wait_for(self, n_threads: int) -> None:
        for _ in range(n_threads):
            assert self._entered.acquire(timeout=PATIENCE_S)

    def open(self) -> None:
        self._opened.set()


@given(st.lists(st.floats(-10, 10), max_size=20), st.data())
def test_what_waits_begins_in_the_order_in_which_it_is_due(due: list[float], data: st.DataObject) -> None:
    """Equals in the order of asking; a thing that is hastened counts from its earliest moment, and is done once."""
    turns = DeadlinePool(1, "turns")
    gate, done = Gate(), list[int]()
    held = turns.submit(0.0, gate.hold)
    gate.wait_for(1)

    def numbered(number: int) -> int:
        done.append(number)
        return number

    waiting = [turns.submit(moment, partial(numbered, number)) for number, moment in enumerate(due)]
    earliest = list(zip(due, range(len(due))))
    if due:
        for n_asked, number in enumerate(data.draw(st.lists(st.sampled_from(range(len(due))), max_size=5)), len(due)):
            sooner = data.draw(st.floats(-20, 10))
            turns.hasten(waiting[number], sooner)
            earliest[number] = min(earliest[number], (sooner, n_asked))
    gate.open()
    assert held.result.result(PATIENCE_S) == -1
    assert [turn.result.result(PATIENCE_S) for turn in waiting] == list(range(len(due)))
    assert done == sorted(range(len(due)), key=earliest.__getitem__)


def test_so_much_is_done_at_once_and_no_more() -> None:
    """Also by threads that had nothing to do for a while."""
    turns = DeadlinePool(3, "turns")
    for _ in range(3):
        gate = Gate()
        held = [turns.submit(0.0, gate.hold) for _ in range(5)]
        gate.wait_for(3)
        assert sum(turn.result.running() for turn in held) == 3
        gate.open()
        assert [turn.result.result(PATIENCE_S) for turn in held] == 5 * [-1]
    assert turns._n_threads_begun == 3


def test_it_is_idle_when_all_is_done() -> None:
    """And not while anything waits or is being done."""
    turns, gate = DeadlinePool(1, "turns"), Gate()
    wait_until("it is idle", lambda: turns.is_idle)
    held = [turns.submit(0.0, gate.hold) for _ in range(2)]
    gate.wait_for(1)
    assert not turns.is_idle
    gate.open()
    assert [turn.result.result(PATIENCE_S) for turn in held] == 2 * [-1]
    wait_until("it is idle again", lambda: turns.is_idle)


def test_an_error_is_for_who_asks_for_the_result() -> None:
    """The thread that met it goes on."""

    def fail() -> int:
        raise ValueError("no such thing")

    turns = DeadlinePool(1, "turns")
    with pytest.raises(ValueError, match="no such thing"):
        turns.submit(0.0, fail).result.result(PATIENCE_S)
    assert turns.submit(0.0, lambda: 7).result.result(PATIENCE_S) == 7
