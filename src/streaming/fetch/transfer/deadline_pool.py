"""Urgent work first: a pool of threads that runs what is due first, and a gate at which bulk transfers yield."""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeadlineJob(Generic[T]):
    """Something to be run, and its result."""

    run: Callable[[], T]
    result: Future[T] = field(default_factory=Future)


class DeadlinePool:
    """Runs at most `n_threads` jobs at once; of those that wait, the one that is due first begins next. Thread-safe.

    One thread starts at once, so that a machine at its limit of processes still does the work, if more slowly.
    So the first batch is served before what is needed after it, whoever asked first. Nothing waits for ever: moments
    are those of one clock, and later jobs are due later.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._n_threads = n_threads
        self._name = name
        self._waiting: list[tuple[float, int, DeadlineJob[Any]]] = []  # due, number, job
        self._numbers = count()
        self._n_threads_idle = 0
        self._n_threads_begun = 1
        self._changed = threading.Condition()
        self._start_thread()

    def submit(self, due_s: float, run: Callable[[], T]) -> DeadlineJob[T]:
        """Have `run` called by a thread. `due_s`: when it is needed, as `time.monotonic` tells.

        The job's `result` raises what `run` raises.
        """
        job = DeadlineJob(run)
        self.hasten(job, due_s)
        return job

    def hasten(self, job: DeadlineJob[Any], due_s: float) -> None:
        """Somebody needs a submitted job at this moment, perhaps sooner; of no effect once it has begun."""
        with self._changed:
            heapq.heappush(self._waiting, (due_s, next(self._numbers), job))
            is_short = len(self._waiting) > self._n_threads_idle and self._n_threads_begun < self._n_threads
            if is_short:
                self._n_threads_begun += 1
            self._changed.notify()
        if is_short:
            try:
                self._start_thread()
            except RuntimeError:  # the limit of processes: the threads that run already do the work
                with self._changed:
                    self._n_threads_begun -= 1

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        with self._changed:
            return not self._waiting and self._n_threads_idle == self._n_threads_begun

    def _start_thread(self) -> None:
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            job = self._next_job()
            try:
                job.result.set_result(job.run())
            except BaseException as error:  # for the caller that asks for the result
                job.result.set_exception(error)

    def _next_job(self) -> DeadlineJob[Any]:
        """The next job, from now on this thread's."""
        with self._changed:
            while True:
                while not self._waiting:
                    self._n_threads_idle += 1
                    self._changed.wait()
                    self._n_threads_idle -= 1
                _, _, job = heapq.heappop(self._waiting)
                # A job that was hastened waits several times.
                if not job.result.running() and not job.result.done() and job.result.set_running_or_notify_cancel():
                    return job


class BulkGate:
    """Makes whole files yield to samples that are needed at once. Thread-safe.

    Else the first batch would share the network with what follows it.
    """

    def __init__(self, longest_s: float) -> None:
        """`longest_s`: how long one transfer yields in its life, so that it is not put off for ever."""
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._n_urgent = 0
        self._is_free = threading.Event()
        self._is_free.set()

    @contextlib.contextmanager
    def urgent(self) -> Iterator[None]:
        """In the block, bulk transfers yield."""
        with self._lock:
            self._n_urgent += 1
            self._is_free.clear()
        try:
            yield
        finally:
            with self._lock:
                self._n_urgent -= 1
                if not self._n_urgent:
                    self._is_free.set()

    def yield_to_urgent(self, yielded_s: float) -> float:
        """Wait while anything is urgent. `yielded_s`: how long this transfer has yielded; its new value is returned."""
        if yielded_s >= self._longest_s or self._is_free.is_set():
            return yielded_s
        began_s = time.monotonic()
        self._is_free.wait(self._longest_s - yielded_s)
        return yielded_s + time.monotonic() - began_s
