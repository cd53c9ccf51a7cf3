"""How fast training consumes samples, from what its loader has counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streaming.fetch.client import FetchClient
from streaming.read.epoch.early_ranges import TrainingRate
from streaming.read.telemetry.counters import Count, SharedCounters
from streaming.read.telemetry.loader_monitor import LoaderMonitor


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _waited_for(clock: Clock, batches: list[float]) -> Iterator[float]:
    for batch in batches:
        clock.now_s += 0.1
        yield batch


def test_the_rate_is_a_step_of_all_ranks_over_the_shortest_time_of_one() -> None:
    """Known from the third batch on, and read again only after a moment; unknown once the dataset is closed."""
    clock, counters = Clock(), SharedCounters(1)
    rate = TrainingRate(counters, 8, 4, clock, is_counted=True)
    assert rate.bytes_per_s(1000.0) is None
    counters.add({Count.BATCHES: 3})
    counters.add_step(0.25)
    assert rate.bytes_per_s(1000.0) is None
    clock.now_s += 0.2
    assert rate.bytes_per_s(1000.0) == 8 * 4 * 1000.0 / 0.25
    assert rate.bytes_per_s(500.0) == 8 * 4 * 500.0 / 0.25
    counters.close()
    clock.now_s += 0.2
    assert rate.bytes_per_s(1000.0) is None


def test_it_is_worth_waiting_for_the_rate_for_a_moment_where_another_process_counts() -> None:
    """For five seconds from the beginning of reading on; never where nobody counts."""
    clock, counters = Clock(), SharedCounters(1)
    counted, not_counted = (TrainingRate(counters, 8, 1, clock, is_counted=is_counted) for is_counted in (True, False))
    for passed_s, left_s in ((0.0, 5.0), (3.0, 2.0), (9.0, 0.0)):
        clock.now_s = passed_s
        assert counted.expected_within_s == left_s
        assert not_counted.expected_within_s == 0.0


def test_the_loader_counts_its_shortest_step_over_epochs() -> None:
    """Not the time that it waits, and no step before the first batch."""
    clock, counters = Clock(), SharedCounters(1)
    monitor = LoaderMonitor(counters, FetchClient(None, []), None, rank=0, n_workers=1, n_cores=1, clock=clock)
    for steps, least_s in (([5.0, 2.0, 3.0], 2.0), ([4.0, 0.5], 0.5), ([9.0], 0.5)):
        for step_s in monitor.over(_waited_for(clock, [*steps, 100.0])):
            clock.now_s += step_s
        assert counters.shortest_step_s() == pytest.approx(least_s)
