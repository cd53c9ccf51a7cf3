"""What keeps training waiting, told from measured times alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from streaming.fetch.client import FetchClient
from streaming.read.telemetry.bottleneck import Cause, Fetching, WaitRules, Window, bottleneck, warning
from streaming.read.telemetry.counters import Count, SharedCounters
from streaming.read.telemetry.loader_watch import LoaderWatch

RULES = WaitRules()

# Half a minute, half of it waited, two workers that have told of all their time, on a machine with cores to spare.
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
    """Each case as it is met in training."""
    assert bottleneck(window, RULES) is cause


@pytest.mark.parametrize(
    ("window", "is_over"),
    [
        (HALF, True),
        (replace(HALF, n_batches=19), False),
        (replace(HALF, waited_s=9, worked_s=10), False),
        (replace(HALF, idle_s=20), False),  # a worker has not told of its time yet
        (replace(HALF, n_workers=0, idle_s=0), True),
    ],
)
def test_nothing_is_judged_before_it_is_known_well_enough(window: Window, is_over: bool) -> None:
    """Enough seconds, enough batches, and workers that have told of at least half of their time."""
    assert window.is_over(RULES) is is_over


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("n_workers", [0, 1, 2])
def test_a_warning_says_how_long_why_and_what_to_do(cause: Cause, n_workers: int) -> None:
    """In numbers; deleted files are named only if there were any."""
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


# --- the watch, with a clock of its own


class Clock:
    """Goes on when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Training:
    """A loader without workers and the training that uses it, on one clock."""

    def __init__(self, rules: WaitRules | None, n_workers: int = 0) -> None:
        self.clock, self.meter = Clock(), SharedCounters(1)
        self.client = FetchClient(None, [])
        self.watch = LoaderWatch(
            self.meter, self.client, rules, rank=0, n_workers=n_workers, n_cores=4, clock=self.clock
        )

    def epoch(self, n_batches: int, *, waited_s: float, worked_s: float, shards_s: float = 0.0) -> None:
        """So many batches, each waited for so long, of which so long for shards."""

        def batches() -> Iterator[int]:
            for number in range(n_batches):
                self.clock.now_s += waited_s
                self.meter.waited(Count.SHARDS_S, shards_s)
                yield number

        for _ in self.watch.over(batches()):
            self.clock.now_s += worked_s


def _causes(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = []
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        found.append(record.getMessage().partition("the bottleneck is ")[2].partition(":")[0])
    return found


def test_waiting_is_said_once_and_again_after_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """Each cause for itself, so that another is said at once, and one that comes and goes is not said each time."""
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
    """Up to a tenth of the time."""
    Training(RULES).epoch(1000, waited_s=0.099, worked_s=0.9)
    assert not caplog.records


def test_no_rules_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """But everything is counted."""
    training = Training(None)
    training.epoch(100, waited_s=1, worked_s=0.5)
    assert not caplog.records
    reading = training.meter.reading()
    assert reading[Count.BATCHES] == 100
    assert reading[Count.WAITED_S] == pytest.approx(100)
    assert reading[Count.WORKED_S] == pytest.approx(49.5)


@pytest.mark.parametrize("n_workers", [0, 3])
def test_the_first_batches_of_an_epoch_do_not_count(caplog: pytest.LogCaptureFixture, n_workers: int) -> None:
    """However long they take: workers start, and fill their queues."""
    training = Training(RULES, n_workers)
    for _ in range(50):
        training.epoch(RULES.n_first + n_workers, waited_s=100, worked_s=0.1)
    assert not caplog.records


def test_short_epochs_are_judged_together(caplog: pytest.LogCaptureFixture) -> None:
    """Else training on small data would never hear of it."""
    training = Training(RULES)
    for _ in range(3):
        training.epoch(RULES.n_first + 1 + 5, waited_s=1, worked_s=1, shards_s=1)
    assert not caplog.records
    training.epoch(RULES.n_first + 1 + 5, waited_s=1, worked_s=1, shards_s=1)
    assert _causes(caplog) == ["the network"]


def test_what_readers_do_between_epochs_and_at_their_start_is_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    """Waits for shards that no counted batch waited for explain nothing."""
    training = Training(RULES)
    for _ in range(10):
        training.meter.waited(Count.SHARDS_S, 1000)
        training.epoch(RULES.n_first + 1 + 5, waited_s=1, worked_s=1)
    assert set(_causes(caplog)) == {"decode"}


def test_workers_that_have_not_told_of_their_time_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """A stretch may be long; the window then goes on."""
    training = Training(RULES, n_workers=1)
    training.epoch(100, waited_s=1, worked_s=1)
    assert not caplog.records
    training.epoch(100, waited_s=1, worked_s=1, shards_s=2)
    assert _causes(caplog) == ["the network"]


def test_a_closed_dataset_ends_the_watch_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """Its workers may still bring batches."""
    training = Training(WaitRules(min_s=0, min_batches=5))
    batches = training.watch.over(iter(range(100)))
    for _ in range(10):
        next(batches)
    training.meter.close()
    assert list(batches) == list(range(10, 100))
    assert not caplog.records
