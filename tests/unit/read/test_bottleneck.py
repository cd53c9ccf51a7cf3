"""What keeps training waiting is decided from measured times alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, zip_longest

import pytest

from streaming.fetch.client import FetchClient
from streaming.read.telemetry.bottleneck import Cause, Fetching, WaitRules, Window, bottleneck, warning
from streaming.read.telemetry.counters import Count, SharedCounters
from streaming.read.telemetry.loader_monitor import LoaderMonitor

RULES = WaitRules()

# Half a minute, half of it waited; two workers that have reported all their time; a machine with cores to spare.
HALF = Window(
    n_batches=100, waited_s=15, worked_s=15, n_workers=2, n_cores=8, load=0.3, fetching_s=0, cpu_s=0, idle_s=60
)

CASES = {
    "training hardly waits": (replace(HALF, waited_s=2, worked_s=28, fetching_s=60, idle_s=0), None),
    "workers wait for shards": (replace(HALF, fetching_s=40, cpu_s=10, idle_s=10), Cause.NETWORK),
    "one of many workers waits for its shard, the others for that one": (
        replace(HALF, n_workers=8, fetching_s=15, cpu_s=15, idle_s=210),
        Cause.NETWORK,
    ),
    "waits of workers that explain nothing": (replace(HALF, fetching_s=3, cpu_s=10, idle_s=47), Cause.HAND_OVER),
    "workers run all the time": (replace(HALF, fetching_s=10, cpu_s=48, idle_s=2), Cause.DECODE),
    "workers take all cores, and look idle": (
        replace(HALF, n_workers=16, n_cores=2, cpu_s=55, idle_s=425),
        Cause.DECODE,
    ),
    "others take all cores": (replace(HALF, load=3.0, cpu_s=10, idle_s=50), Cause.DECODE),
    "others take all cores, but shards are late": (
        replace(HALF, load=3.0, fetching_s=20, cpu_s=10, idle_s=30),
        Cause.NETWORK,
    ),
    "workers run half of the time, on idle cores": (replace(HALF, cpu_s=32, idle_s=28), Cause.DECODE),
    "workers are idle": (replace(HALF, cpu_s=5, idle_s=55), Cause.HAND_OVER),
    "no workers, waiting for shards": (replace(HALF, n_workers=0, fetching_s=10, idle_s=5), Cause.NETWORK),
    "no workers, making samples": (replace(HALF, n_workers=0, fetching_s=5, cpu_s=30, idle_s=0), Cause.DECODE),
    "no workers, and get_item sleeps": (replace(HALF, n_workers=0, idle_s=30), Cause.DECODE),
}


@pytest.mark.parametrize(("window", "cause"), CASES.values(), ids=CASES)
def test_the_bottleneck_is_what_the_times_say(window: Window, cause: Cause | None) -> None:
    """Cases as they occur in training."""
    assert bottleneck(window, RULES) is cause


@pytest.mark.parametrize(
    ("window", "is_over"),
    [
        (HALF, True),
        (replace(HALF, n_batches=19), False),
        (replace(HALF, waited_s=9, worked_s=10), False),
        (replace(HALF, idle_s=20), False),  # a worker has not reported its time yet
        (replace(HALF, n_workers=0, idle_s=0), True),
    ],
)
def test_nothing_is_judged_before_enough_is_known(window: Window, is_over: bool) -> None:
    """Enough seconds, enough batches, and reports of workers on at least half of their time."""
    assert window.is_over(RULES) is is_over


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("n_workers", [0, 1, 2])
def test_a_warning_says_how_long_why_and_what_to_do(cause: Cause, n_workers: int) -> None:
    """In numbers; it names evicted files only if there were any."""
    window = replace(HALF, n_workers=n_workers, fetching_s=12.5, cpu_s=24)
    said = warning(cause, window, 3, Fetching(2.5 * 2**20, moving=7, queued=30, evicted=0))
    assert "rank 3 waits for data 50 % of the time (15.0 of 30.0 s, 100 batches)" in said
    assert {Cause.NETWORK: "network", Cause.DECODE: "decode", Cause.HAND_OVER: "hand-over"}[cause] in said
    assert "cache_limit" not in said
    if cause is Cause.NETWORK:
        assert "waited 12.5 s" in said
        assert "2.5 MiB/s, with 7 transfers under way and 30 queued" in said
        assert "cache_limit" in warning(cause, window, 3, Fetching(0.0, 7, 30, evicted=4))
        assert "predownload" in warning(cause, window, 3, None)
    if cause is Cause.DECODE:
        assert "num_workers" in said


# --- the monitor, with a clock of its own


class Clock:
    """Goes on when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Training:
    """A loader over a dataset, and the training that uses it, on one clock."""

    def __init__(self, rules: WaitRules | None, n_workers: int = 0, counters: SharedCounters | None = None) -> None:
        self.clock, self.counters = Clock(), SharedCounters(1) if counters is None else counters
        self.monitor = LoaderMonitor(
            self.counters, FetchClient(None, []), rules, rank=0, n_workers=n_workers, n_cores=4, clock=self.clock
        )

    def epoch(self, n_batches: int, *, waited_s: float, worked_s: float, shards_s: float = 0.0) -> None:
        """Hand out batches: training waits for each, in part for shards, and works between them."""

        def batches() -> Iterator[int]:
            for number in range(n_batches):
                self.clock.now_s += waited_s
                self.counters.add_wait(Count.SHARDS_S, shards_s)
                yield number

        for _ in self.monitor.over(batches()):
            self.clock.now_s += worked_s


def _causes(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = []
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        found.append(record.getMessage().partition("the bottleneck is ")[2].partition(":")[0])
    return found


def test_waiting_is_said_once_and_again_after_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """Each cause by itself: another one is named at once, and one that comes and goes is not named each time."""
    training = Training(RULES)
    training.epoch(100, waited_s=1, worked_s=1)
    assert _causes(caplog) == ["decode"]
    training.epoch(40, waited_s=1, worked_s=1, shards_s=1)
    assert _causes(caplog) == ["decode", "the network"]
    training.epoch(40, waited_s=1, worked_s=1)
    training.epoch(40, waited_s=1, worked_s=1, shards_s=1)
    assert _causes(caplog) == ["decode", "the network"]
    training.epoch(650, waited_s=1, worked_s=1, shards_s=1)
    assert _causes(caplog) == ["decode", *["the network"] * 3]


def test_training_that_hardly_waits_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Waits of up to a tenth of the time are no reason to warn."""
    Training(RULES).epoch(1000, waited_s=0.099, worked_s=0.9)
    assert not caplog.records


def test_no_rules_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Everything is counted all the same."""
    training = Training(None)
    training.epoch(100, waited_s=1, worked_s=0.5)
    assert not caplog.records
    reading = training.counters.reading()
    assert reading[Count.BATCHES] == 100
    assert reading[Count.WAITED_S] == pytest.approx(100)
    assert reading[Count.WORKED_S] == pytest.approx(49.5)


@pytest.mark.parametrize("n_workers", [0, 3])
def test_the_first_batches_of_an_epoch_are_not_judged(caplog: pytest.LogCaptureFixture, n_workers: int) -> None:
    """However long they take: workers are starting and filling their queues."""
    training = Training(RULES, n_workers)
    for _ in range(50):
        training.epoch(RULES.n_first + n_workers, waited_s=100, worked_s=0.1)
    assert not caplog.records


def test_short_epochs_are_judged_together(caplog: pytest.LogCaptureFixture) -> None:
    """Else nobody would be warned about training on small data."""
    training = Training(RULES)
    for _ in range(3):
        training.epoch(RULES.n_first + 1 + 5, waited_s=1, worked_s=1, shards_s=1)
    assert not caplog.records
    training.epoch(RULES.n_first + 1 + 5, waited_s=1, worked_s=1, shards_s=1)
    assert _causes(caplog) == ["the network"]


def test_what_readers_do_between_epochs_and_as_one_starts_is_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    """Waits for shards that no counted batch waited for explain nothing."""
    training = Training(RULES)
    for _ in range(10):
        training.counters.add_wait(Count.SHARDS_S, 1000)
        training.epoch(RULES.n_first + 1 + 5, waited_s=1, worked_s=1)
    assert set(_causes(caplog)) == {"decode"}


def test_a_window_goes_on_until_workers_have_reported_their_time(caplog: pytest.LogCaptureFixture) -> None:
    """They report at the end of a segment, which may be long."""
    training = Training(RULES, n_workers=1)
    training.epoch(100, waited_s=1, worked_s=1)
    assert not caplog.records
    training.epoch(100, waited_s=1, worked_s=1, shards_s=2)
    assert _causes(caplog) == ["the network"]


def test_a_closed_dataset_ends_the_monitor_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """Its workers may still deliver batches."""
    training = Training(WaitRules(min_s=0, min_batches=5))
    batches = training.monitor.over(iter(range(100)))
    for _ in range(10):
        next(batches)
    training.counters.close()
    assert list(batches) == list(range(10, 100))
    assert not caplog.records


# --- the speed of training


def _steps(training: Training, steps_s: list[float]) -> Iterator[None]:
    """Take these steps in one epoch, each after a wait of a second; the last one has no end that counts."""

    def batches() -> Iterator[int]:
        for number in range(len(steps_s) + 1):
            training.clock.now_s += 1.0
            yield number

    for number in training.monitor.over(batches()):
        yield
        training.clock.now_s += [*steps_s, 1e-3][number]


def test_the_shortest_step_of_a_loader_is_kept_over_epochs() -> None:
    """Neither the waits count, nor the time after the last batch, when nothing more is asked for."""
    training = Training(None)
    for steps_s, shortest_s in (([], None), ([5.0, 2.0, 3.0], 2.0), ([4.0, 0.5], 0.5), ([9.0], 0.5)):
        for _ in _steps(training, steps_s):
            pass
        assert training.counters.shortest_step_s() == (None if shortest_s is None else pytest.approx(shortest_s))


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
def test_training_with_many_loaders_over_one_dataset_is_as_fast_as_its_shortest_step(at_once: bool) -> None:
    """One loader an epoch, or one for training and others beside it: their steps are not added up."""
    counters = SharedCounters(1)
    epochs = [_steps(Training(None, counters=counters), [0.5, 0.4 + 0.01 * number, 0.7]) for number in range(10)]
    for _ in zip_longest(*epochs) if at_once else chain(*epochs):
        pass
    assert counters.shortest_step_s() == pytest.approx(0.4)
    assert counters.reading()[Count.BATCHES] == 40
