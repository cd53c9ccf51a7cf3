"""Counting in many processes without losing anything, and without a lock between them."""

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


def _count(meter: SharedCounters, n: int, number: int | None = None) -> None:
    if number is not None:
        meter.begin(number, epoch=10 * number)
    for _ in range(n):
        meter.add({Count.BATCHES: 1, Count.WAITED_S: 0.5}, np.array([1, 2]))


def _count_and_die(meter: SharedCounters, n: int) -> None:
    _count(meter, n)
    os.kill(os.getpid(), signal.SIGKILL)


def _process(method: str, target: Any, *arguments: Any) -> Any:
    process = multiprocessing.get_context(method).Process(target=target, args=arguments)  # type: ignore[attr-defined]
    process.start()
    return process


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_all_processes_count_adds_up_in_the_one_that_asks(method: str) -> None:
    """By inheritance or by hand-over, at the same time, and although the workers are gone when it is asked."""
    meter = SharedCounters(2)
    _count(meter, 3)
    workers = [_process(method, _count, meter, n) for n in (20, 30)]
    _count(meter, 4)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    reading = meter.reading()
    assert reading[Count.BATCHES] == 57
    assert reading[Count.WAITED_S] == 57 / 2
    assert reading.samples.tolist() == [57, 114]


def test_a_killed_worker_leaves_its_counts_and_its_slot() -> None:
    """Nothing is lost, and the file does not grow with the number of workers that have ever lived."""
    meter = SharedCounters(2)
    _count(meter, 1)
    for n in range(1, 6):
        worker = _process("fork", _count_and_die, meter, n)
        worker.join(60)
        assert worker.exitcode == -signal.SIGKILL
        assert meter.reading()[Count.BATCHES] == 1 + sum(range(n + 1))
    assert len(meter._slots()) == 2


def test_an_epoch_is_what_was_counted_after_its_begin_by_who_began_it() -> None:
    """In the rank process and in workers, old ones included; asked for by its number, or as the latest."""
    meter = SharedCounters(2)
    assert meter.epoch_reading()[0] is None
    _count(meter, 1)
    for number in (0, 1):
        meter.begin(number, 10 * number)
        meter.begin(number, 10 * number)  # who joins an epoch that its process has begun changes nothing
        workers = [_process("fork", _count, meter, n + number, number) for n in (2, 3)]
        for worker in workers:
            worker.join(60)
        _count(meter, 7)
        epoch, reading = meter.epoch_reading()
        assert epoch == 10 * number
        assert reading[Count.BATCHES] == 7 + 5 + 2 * number
    _count(meter, 1, number=0)  # a loader that is late does not take the process back
    assert meter.epoch_reading()[0] == 10
    assert meter.epoch_reading(7)[1][Count.BATCHES] == 0
    assert meter.reading()[Count.BATCHES] == 1 + 2 * 7 + 5 + 7 + 1


def test_threads_of_one_process_lose_nothing() -> None:
    """They share the process's slot."""
    meter = SharedCounters(2)
    threads = [threading.Thread(target=_count, args=(meter, 200)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.reading()[Count.BATCHES] == 800


def test_a_wait_belongs_to_its_thread_and_counts_for_all() -> None:
    """So that a reader can tell its own waits from those of others in its process."""
    meter = SharedCounters(1)
    meter.waited(Count.SHARDS_S, 2.0)
    thread = threading.Thread(target=meter.waited, args=(Count.RANGES_S, 3.0))
    thread.start()
    thread.join()
    assert meter.waited_here_s == 2.0
    assert meter.reading()[Count.SHARDS_S] == 2.0
    assert meter.reading()[Count.RANGES_S] == 3.0


def test_a_lap_splits_time_into_running_waiting_and_idleness() -> None:
    """The thread's own CPU time; what it waited for the fetcher is not idleness; samples go to their streams."""
    meter = SharedCounters(2)
    lap = Stopwatch(meter, np.array([0, 0, 1]))
    meter.waited(Count.SHARDS_S, 1000.0)  # more than has passed
    lap.ended(np.array([0, 1, 1, 2]))
    reading = meter.reading()
    assert reading[Count.CPU_S] > 0
    assert reading[Count.IDLE_S] == 0
    assert reading.samples.tolist() == [3, 1]


def test_a_meter_pickled_for_anything_but_a_worker_is_a_new_one() -> None:
    """The descriptor is in no pickle that could be kept or sent elsewhere."""
    meter = SharedCounters(2)
    _count(meter, 1)
    copy = pickle.loads(pickle.dumps(meter))
    _count(copy, 5)
    assert meter.reading()[Count.BATCHES] == 1
    assert copy.reading()[Count.BATCHES] == 5


def test_closing_and_dropping_free_the_descriptor() -> None:
    """What is counted afterwards is nobody's; asking is an error."""
    gc.collect()
    n_open = len(os.listdir("/proc/self/fd"))
    meters = [SharedCounters(1) for _ in range(10)]
    for meter in meters[:5]:
        meter.close()
        meter.close()
        meter.add({Count.BATCHES: 1})
        meter.begin(0, 0)
        with pytest.raises(ClosedError):
            meter.reading()
    del meter, meters
    assert len(os.listdir("/proc/self/fd")) == n_open
