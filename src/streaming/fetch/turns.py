"""Threads that do first what is due first."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn(Generic[T]):
    """Something to be done, and what comes of it."""

    run: Callable[[], T]
    result: Future[T] = field(default_factory=Future)


class Turns:
    """At most so many things at once; of those that wait, the one that is due first begins next. Thread-safe.

    So a first batch is served before what is needed after it, whoever asked first. Nothing waits for ever: moments are
    those of one clock, and what comes later is due later.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._n_threads: Final = n_threads
        self._name = name
        self._waiting: list[tuple[float, int, Turn[Any]]] = []  # due, number, turn
        self._numbers = count()
        self._n_threads_idle = 0
        self._n_threads_begun = 0
        self._changed = threading.Condition()

    def submit(self, due_s: float, run: Callable[[], T]) -> Turn[T]:
        """Have it done. `due_s`: when it is needed, as `time.monotonic` tells. What it raises, `result` raises."""
        turn = Turn(run)
        self.hasten(turn, due_s)
        return turn

    def hasten(self, turn: Turn[Any], due_s: float) -> None:
        """Somebody needs what was submitted at this moment, perhaps sooner; of no effect if it was begun."""
        with self._changed:
            heapq.heappush(self._waiting, (due_s, next(self._numbers), turn))
            is_short = len(self._waiting) > self._n_threads_idle and self._n_threads_begun < self._n_threads
            if is_short:
                self._n_threads_begun += 1
            self._changed.notify()
        if is_short:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done or being done."""
        with self._changed:
            return not self._waiting and self._n_threads_idle == self._n_threads_begun

    def _serve(self) -> None:
        while True:
            turn = self._begun()
            try:
                turn.result.set_result(turn.run())
            except BaseException as error:  # for who asks for the result
                turn.result.set_exception(error)

    def _begun(self) -> Turn[Any]:
        """The next turn, from now on this thread's."""
        with self._changed:
            while True:
                while not self._waiting:
                    self._n_threads_idle += 1
                    self._changed.wait()
                    self._n_threads_idle -= 1
                _, _, turn = heapq.heappop(self._waiting)
                # One that was hastened waits several times.
                if not turn.result.running() and not turn.result.done() and turn.result.set_running_or_notify_cancel():
                    return turn
