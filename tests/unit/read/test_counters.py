"""Many processes count without a lock between them, and lose nothing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest

from streaming.errors import ClosedError
from streaming.read.telemetry.counters import Count, SharedCounters, Stopwatch
from support.loader_workers import as_loader_worker


def _count(counters: SharedCounters, n: int, number: int | None = None) -> None:
    if number is not None:
        counters.begin_epoch(number, epoch=10 * number)
    for _ in range(n):
        counters.add({Count.BATCHES: 1, Count.WAITED_S: 0.5}, np.array([1, 2]))


def _count_and_die(counters: SharedCounters, n: int) -> None:
    _count(counters, n)
    os.kill(os.getpid(), signal.SIGKILL)


def _process(method: str, target: Any, *arguments: Any) -> Any:
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=as_loader_worker, args=(target, *arguments))
    process.start()
    return process


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_all_processes_count_adds_up_in_the_one_that_asks(method: str) -> None:
    """The file is inherited or handed over; all count at the same time; the workers are gone when it is read."""
    counters = SharedCounters(2)
    _count(counters, 3)
    workers = [_process(method, _count, counters, n) for n in (20, 30)]
    _count(counters, 4)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    reading = counters.reading()
    assert reading[Count.BATCHES] == 57
    assert reading[Count.WAITED_S] == 57 / 2
    assert reading.samples.tolist() == [57, 114]


def test_a_killed_worker_leaves_its_counts_and_its_slot() -> None:
    """Nothing is lost, and the file does not grow with the number of workers that have ever lived."""
    counters = SharedCounters(2)
    _count(counters, 1)
    for n in range(1, 6):
        worker = _process("fork", _count_and_die, counters, n)
        worker.join(60)
        assert worker.exitcode == -signal.SIGKILL
        assert counters.reading()[Count.BATCHES] == 1 + sum(range(n + 1))
    assert len(counters._slots()) == 2


def test_an_epoch_is_what_was_counted_after_it_began_in_each_process() -> None:
    """In the rank process and in workers, old ones included; read by its number, or as the latest."""
    counters = SharedCounters(2)
    assert counters.epoch_reading()[0] is None
    _count(counters, 1)
    for number in (0, 1):
        counters.begin_epoch(number, 10 * number)
        counters.begin_epoch(number, 10 * number)  # joining an epoch that this process has begun changes nothing
        workers = [_process("fork", _count, counters, n + number, number) for n in (2, 3)]
        for worker in workers:
            worker.join(60)
        _count(counters, 7)
        epoch, reading = counters.epoch_reading()
        assert epoch == 10 * number
        assert reading[Count.BATCHES] == 7 + 5 + 2 * number
    _count(counters, 1, number=0)  # a loader that is late does not take the process back
    assert counters.epoch_reading()[0] == 10
    assert counters.epoch_reading(7)[1][Count.BATCHES] == 0
    assert counters.reading()[Count.BATCHES] == 1 + 2 * 7 + 5 + 7 + 1


def test_the_shortest_step_of_all_processes_and_loaders_is_kept() -> None:
    """Whoever took it, in whichever order, and however many there were; it is no sum, and none is known at first."""
    counters = SharedCounters(2)
    assert counters.shortest_step_s() is None
    for seconds, shortest_s in ((3.0, 3.0), (2.0, 2.0), (5.0, 2.0), (2.0, 2.0)):
        counters.add_step(seconds)
        assert counters.shortest_step_s() == shortest_s
    for seconds, shortest_s in ((4.0, 2.0), (0.5, 0.5), (1.0, 0.5), (0.0, 1e-9)):
        worker = _process("fork", counters.add_step, seconds)
        worker.join(60)
        assert counters.shortest_step_s() == shortest_s
    _count(counters, 1, number=0)  # an epoch that begins changes nothing
    assert counters.shortest_step_s() == 1e-9
    assert counters.reading()[Count.BATCHES] == 1


def test_threads_of_one_process_lose_nothing() -> None:
    """They share the process's slot."""
    counters = SharedCounters(2)
    threads = [threading.Thread(target=_count, args=(counters, 200)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.reading()[Count.BATCHES] == 800


def test_a_wait_belongs_to_its_thread_and_counts_for_all() -> None:
    """A reader can tell its own waits from those of other threads in its process."""
    counters = SharedCounters(1)
    counters.add_wait(Count.SHARDS_S, 2.0)
    thread = threading.Thread(target=counters.add_wait, args=(Count.RANGES_S, 3.0))
    thread.start()
    thread.join()
    assert counters.waited_here_s == 2.0
    assert counters.reading()[Count.SHARDS_S] == 2.0
    assert counters.reading()[Count.RANGES_S] == 3.0


def test_a_stopwatch_splits_time_into_running_waiting_and_idleness() -> None:
    """CPU time is the thread's own; waits for the fetcher are not idleness; samples count for their streams."""
    counters = SharedCounters(2)
    stopwatch = Stopwatch(counters, np.array([0, 0, 1]))
    counters.add_wait(Count.SHARDS_S, 1000.0)  # more than has passed
    stopwatch.ended(np.array([0, 1, 1, 2]))
    reading = counters.reading()
    assert reading[Count.CPU_S] > 0
    assert reading[Count.IDLE_S] == 0
    assert reading.samples.tolist() == [3, 1]


def test_counters_pickled_for_anything_but_a_worker_are_new_ones() -> None:
    """The descriptor is in no pickle that could be kept or sent elsewhere."""
    counters = SharedCounters(2)
    _count(counters, 1)
    copy = pickle.loads(pickle.dumps(counters))
    _count(copy, 5)
    assert counters.reading()[Count.BATCHES] == 1
    assert copy.reading()[Count.BATCHES] == 5


def test_closing_and_dropping_free_the_descriptor() -> None:
    """What is counted afterwards is lost; reading raises."""
    gc.collect()
    n_open = len(os.listdir("/proc/self/fd"))
    all_counters = [SharedCounters(1) for _ in range(10)]
    for counters in all_counters[:5]:
        counters.close()
        counters.close()
        counters.add({Count.BATCHES: 1})
        counters.begin_epoch(0, 0)
        counters.add_step(1.0)
        with pytest.raises(ClosedError):
            counters.reading()
    del counters, all_counters
    assert len(os.listdir("/proc/self/fd")) == n_open


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_rank_started_from_it_counts_for_itself(method: str) -> None:
    """A process that is no loader worker."""
    counters = SharedCounters(2)
    _count(counters, 3)
    context: Any = multiprocessing.get_context(method)
    rank = context.Process(target=_count, args=(counters, 5))
    rank.start()
    rank.join(60)
    assert rank.exitcode == 0
    assert counters.reading()[Count.BATCHES] == 3
