"""What a dataset reports of itself: all of it, in words, and without secrets."""

from __future__ import annotations

import json

import numpy as np

from streaming import Stream
from streaming.fetch.wire.protocol import Reason
from streaming.read.telemetry.counters import Count, Reading, SharedCounters
from streaming.read.telemetry.stats import FetcherStats, ReadingStats, Stats, epoch_line, stream_stats
from streaming.stream import StreamDefaults, resolve

# A fetcher's answer; some of the total is another job's.
NUMBERS = {
    "moving": 3,
    "moving_bytes": 1 << 20,
    "queued": 5,
    "evicted": 7,
    "cache_bytes": 1 << 30,
    "is_limited": True,
    "stores": {"requests": 40, "refused": 2},
    "total": {"bytes": 5 << 20, "range_bytes": 1000, "files": 11, "attempts": 13, "failures": 1, "ranges_ahead": 9},
    "remotes": {"s3://bkt/d": {"bytes": 4 << 20, "files": 10, "attempts": 12, "ranges_ahead": 8, "ranges_few": 1}},
}


def _reading() -> Reading:
    """Another number for every count; two streams."""
    counters = SharedCounters(2)
    counters.add({count: 10.5 * (1 + count) for count in Count}, np.array([100, 23]))
    return counters.reading()


def _stats(reading: Reading) -> Stats:
    streams = [Stream(remote="s3://bkt/d"), Stream(remote="https://someone:hush@host.example/d")]
    locations = [resolve(stream, number, StreamDefaults()) for number, stream in enumerate(streams)]
    return Stats(
        rank=5,
        epoch=2,
        since_start=ReadingStats.of(reading),
        of_epoch=ReadingStats.of(reading - reading),
        fetcher=FetcherStats.of(NUMBERS),
        streams=tuple(stream_stats(locations, reading, NUMBERS)),
    )


def test_every_count_has_its_place() -> None:
    """No two figures come from one count, and none is lost but in a mean."""
    stats = _stats(_reading()).as_dict()["since_start"]
    figures = [value for value in stats.values() if not isinstance(value, dict)] + [*stats["samples_by_range"].values()]
    n_shown = len(Count) - 1 + 1  # two means come from three counts; samples are no count
    assert len(set(figures)) == len(figures) == n_shown
    assert stats["samples"] == 123
    assert set(stats["samples_by_range"]) == {reason.value for reason in Reason}


def test_stats_are_json() -> None:
    """Without conversion, so they can be logged anywhere."""
    stats = _stats(_reading())
    said = json.loads(json.dumps(stats.as_dict()))
    assert said["fetcher"]["bytes"] == 6 << 20  # transfers under way included
    assert said["fetcher"]["throttled"] == 2
    assert said["streams"][0] == {"remote": "s3://bkt/d", "samples": 100, "bytes": 4 << 20, "files": 10, "ranges": 9}
    assert said["streams"][1]["samples"] == 23
    assert said["of_epoch"]["announced"] is None


def test_words_and_values_hold_no_secret() -> None:
    """A password in a URL appears nowhere."""
    stats = _stats(_reading())
    assert "hush" not in f"{stats} {stats!r} {stats.as_dict()}"
    assert "host.example/d" in str(stats)


def test_words_say_whose_figures_they_are() -> None:
    """This rank's, one epoch's, or the fetcher's for all who share it; without a fetcher, nothing was fetched."""
    stats = _stats(_reading())
    said = str(stats)
    assert "rank 5" in said
    assert "epoch 2" in said
    assert "for all ranks and jobs that share it" in said
    assert "6.0 MiB in 11 files" in said
    without = Stats(0, None, stats.of_epoch, stats.of_epoch, None, tuple(stream_stats([], _reading(), None)))
    assert "no fetcher runs" in str(without)
    assert "no epoch yet" in str(without)


def test_an_epoch_fits_into_a_line() -> None:
    """It says which share of the time training waited, also where no time has passed."""
    it = ReadingStats.of(_reading())
    assert "\n" not in epoch_line(1, 3, it)
    assert epoch_line(1, 3, it).startswith(
        "epoch 3, rank 1: 123 samples in 168 batches, 367.5 s; training waited 178.5 s"
    )
    assert "(0 %)" in epoch_line(0, 0, ReadingStats.of(_reading() - _reading()))
