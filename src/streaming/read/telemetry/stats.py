"""What a dataset has done and waited for: as numbers, and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from streaming.fetch.wire import Reason
from streaming.read.streams.location import StreamLocation
from streaming.read.telemetry.counters import RANGED, Count, Reading
from streaming.units import shown_bytes

_WHY: Final = {
    Reason.AHEAD: "their shard was late",
    Reason.RANDOM: "random access",
    Reason.FEW: "few are needed of their shard",
    Reason.NO_ROOM: "no room for their shard",
}


@dataclass(frozen=True, slots=True)
class ReadingStats:
    """What a rank process and its loader workers did over some time. Seconds are summed over these processes."""

    samples: int
    """Samples read in epochs. Readers report them a segment at a time, so some hundred may be missing."""
    index_wait_s: float
    """Processes waited for indexes."""
    shard_wait_s: float
    """Readers waited for shards that were not on disk."""
    range_wait_s: float
    """Readers waited for samples that came without their shard."""
    fetcher_wait_s: float
    """Readers waited for the fetcher to start, or to take up a list of what is needed next."""
    cpu_s: float
    """Readers ran: they decoded, and did whatever else these processes do with samples."""
    idle_s: float
    """Readers neither ran nor waited for data: training was slower, or the code that they run waited itself."""
    shards_at_hand: int
    """Shards that were on disk when they were opened."""
    shards_awaited: int
    """Shards that were not."""
    samples_by_range: dict[str, int]
    """Samples that came without their shard, by reason: `random`, `ahead`, `few` and `no_room`."""
    announced: float | None
    """Shards in a reader's list of what it needs next: the mean over all looks at it; None before the first."""
    announced_on_disk: float | None
    """The mean number of these that were on disk at that time."""
    batches: int
    """Batches that a StreamingDataLoader has handed out."""
    training_waited_s: float
    """Training waited for batches."""
    training_worked_s: float
    """Training did something else between batches."""

    @classmethod
    def of(cls, reading: Reading) -> ReadingStats:
        """Name the counts of a reading."""
        n_looks = reading[Count.LOOKS]
        return cls(
            samples=int(reading.samples.sum()),
            index_wait_s=reading[Count.INDEX_S],
            shard_wait_s=reading[Count.SHARDS_S],
            range_wait_s=reading[Count.RANGES_S],
            fetcher_wait_s=reading[Count.FETCHER_S],
            cpu_s=reading[Count.CPU_S],
            idle_s=reading[Count.IDLE_S],
            shards_at_hand=int(reading[Count.AT_HAND]),
            shards_awaited=int(reading[Count.AWAITED]),
            samples_by_range={reason.value: int(reading[count]) for reason, count in RANGED.items()},
            announced=reading[Count.ANNOUNCED] / n_looks if n_looks else None,
            announced_on_disk=reading[Count.ON_DISK] / n_looks if n_looks else None,
            batches=int(reading[Count.BATCHES]),
            training_waited_s=reading[Count.WAITED_S],
            training_worked_s=reading[Count.WORKED_S],
        )

    @property
    def wait_s(self) -> float:
        """Seconds of all waits for the fetcher."""
        return self.index_wait_s + self.shard_wait_s + self.range_wait_s + self.fetcher_wait_s


@dataclass(frozen=True, slots=True)
class FetcherStats:
    """What this machine's fetcher has done since it started, for all ranks and jobs that share the cache."""

    bytes: int
    """Bytes that came from stores, including those of transfers under way."""
    files: int
    """Files that were fetched whole."""
    ranges: dict[str, int]
    """Requests for parts of files, by reason."""
    range_bytes: int
    """Bytes that these brought."""
    requests: int
    """Requests to stores, of every kind."""
    attempts: int
    """Attempts to fetch files; more than files were fetched if some had to be tried again."""
    failures: int
    """Files that could not be fetched."""
    throttled: int
    """Responses of stores that asked to slow down."""
    evicted: int
    """Files evicted to keep a limit, or to make room on a full disk."""
    cache_bytes: int | None
    """Bytes in the cache; None where no job has a limit, since nothing counts them then."""
    moving: int
    """Transfers under way."""
    queued: int
    """Files that wait to be fetched."""

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> FetcherStats:
        """Name the numbers that a fetcher reports of itself."""
        total, stores = numbers["total"], numbers["stores"]
        return cls(
            bytes=total.get("bytes", 0) + numbers["moving_bytes"],
            files=total.get("files", 0),
            ranges=_ranges(total),
            range_bytes=total.get("range_bytes", 0),
            requests=stores["requests"],
            attempts=total.get("attempts", 0),
            failures=total.get("failures", 0),
            throttled=stores["refused"],
            evicted=numbers["evicted"],
            cache_bytes=numbers["cache_bytes"] if numbers["is_limited"] else None,
            moving=numbers["moving"],
            queued=numbers["queued"],
        )


@dataclass(frozen=True, slots=True)
class StreamStats:
    """One stream: what this rank has read of it, and what this machine's fetcher has fetched from its remote.

    `bytes`, `files` and `ranges` are None if no fetcher runs.
    """

    remote: str
    """URL or folder, without secrets."""
    samples: int
    """Samples that this rank has read in epochs."""
    bytes: int | None
    files: int | None
    ranges: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """What a dataset has done and waited for so far; `print` it for a table."""

    rank: int
    epoch: int | None
    """The epoch that started last; None before the first."""
    since_start: ReadingStats
    """All since the dataset was made."""
    of_epoch: ReadingStats
    """What belongs to the epoch `epoch`."""
    fetcher: FetcherStats | None
    """None if no fetcher runs, since nothing needs fetching."""
    streams: tuple[StreamStats, ...]

    def as_dict(self) -> dict[str, Any]:
        """Give the same as plain values, which can be logged as JSON."""
        return {**asdict(self), "streams": [asdict(stream) for stream in self.streams]}

    def __str__(self) -> str:
        return "\n".join(_table(self))


def stream_stats(
    locations: Sequence[StreamLocation], reading: Reading, numbers: Mapping[str, Any] | None
) -> list[StreamStats]:
    """Report on each stream. `numbers`: what the fetcher reports; None if no fetcher runs."""
    streams = []
    for location, samples in zip(locations, reading.samples.tolist()):
        remote = location.remote
        fetched = {} if numbers is None else numbers["remotes"].get(str(remote), {})
        n_ranges = sum(_ranges(fetched).values())
        figures = (fetched.get("bytes", 0), fetched.get("files", 0), n_ranges)
        streams.append(StreamStats(remote.shown, int(samples), *((None,) * 3 if numbers is None else figures)))
    return streams


def epoch_line(rank: int, epoch: int, it: ReadingStats) -> str:
    """Sum up an epoch of a rank in one line."""
    total_s = it.training_waited_s + it.training_worked_s
    parts = [f"{it.samples:,} samples in {it.batches:,} batches, {total_s:.1f} s"]
    parts.append(f"training waited {it.training_waited_s:.1f} s ({_share(it.training_waited_s, total_s)})")
    parts.append(
        f"readers: {it.cpu_s:.1f} s CPU, {it.shard_wait_s:.1f} s waiting for shards, {it.range_wait_s:.1f} s for "
        f"ranges, {it.fetcher_wait_s:.1f} s for the fetcher, {it.idle_s:.1f} s idle"
    )
    parts.append(f"{it.shards_at_hand:,} shards at hand, {it.shards_awaited:,} waited for")
    parts.append(f"{sum(it.samples_by_range.values()):,} samples by range")
    if it.announced is not None and it.announced_on_disk is not None:
        parts.append(f"of {it.announced:.0f} shards announced {it.announced_on_disk:.0f} were there (mean)")
    return f"epoch {epoch}, rank {rank}: {'; '.join(parts)}"


def _ranges(counts: Mapping[str, int]) -> dict[str, int]:
    return {reason.value: counts.get(f"ranges_{reason.value}", 0) for reason in Reason}


# --- in words


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s"


def _number(n: float | None) -> str:
    return "-" if n is None else f"{n:,.0f}"


_ROWS: Final[tuple[tuple[str, Callable[[ReadingStats], str]], ...]] = (
    ("samples read", lambda it: _number(it.samples)),
    ("training waited for batches", lambda it: _seconds(it.training_waited_s)),
    ("training did something else", lambda it: _seconds(it.training_worked_s)),
    ("readers ran (CPU)", lambda it: _seconds(it.cpu_s)),
    ("readers waited for indexes", lambda it: _seconds(it.index_wait_s)),
    ("readers waited for shards", lambda it: _seconds(it.shard_wait_s)),
    ("readers waited for ranges", lambda it: _seconds(it.range_wait_s)),
    ("readers waited for the fetcher's answers", lambda it: _seconds(it.fetcher_wait_s)),
    ("readers were idle", lambda it: _seconds(it.idle_s)),
    ("shards that were on disk when opened", lambda it: _number(it.shards_at_hand)),
    ("shards that were waited for", lambda it: _number(it.shards_awaited)),
    ("shards announced ahead (mean)", lambda it: _number(it.announced)),
    ("of these on disk (mean)", lambda it: _number(it.announced_on_disk)),
)


def _table(it: Stats) -> Iterator[str]:
    epoch = "no epoch yet" if it.epoch is None else f"epoch {it.epoch}"
    yield _row(f"rank {it.rank} and its workers", "since start", epoch)
    for title, figure in _ROWS:
        yield _row(title, figure(it.since_start), figure(it.of_epoch))
    for reason, why in _WHY.items():
        whole, part = (period.samples_by_range[reason.value] for period in (it.since_start, it.of_epoch))
        if whole:
            yield _row(f"samples by range: {why}", f"{whole:,}", f"{part:,}")
    yield ""
    yield from _fetcher_lines(it.fetcher)
    yield ""
    yield _columns("stream", "samples", "bytes", "files", "ranges")
    for stream in it.streams:
        n_bytes = "-" if stream.bytes is None else shown_bytes(stream.bytes)
        yield _columns(stream.remote, f"{stream.samples:,}", n_bytes, _number(stream.files), _number(stream.ranges))


def _fetcher_lines(it: FetcherStats | None) -> Iterator[str]:
    if it is None:
        yield "no fetcher runs on this machine for this cache: nothing needs fetching"
        return
    yield "this machine's fetcher since it started, for all ranks and jobs that share it"
    yield (
        f"  fetched: {shown_bytes(it.bytes)} in {it.files:,} files and {sum(it.ranges.values()):,} ranges "
        f"({shown_bytes(it.range_bytes)}); {it.moving:,} files are moving, {it.queued:,} queued"
    )
    yield (
        f"  stores: {it.requests:,} requests, {it.throttled:,} answered by asking to slow down; "
        f"{it.attempts:,} attempts to fetch files, {it.failures:,} files failed"
    )
    there = "no limit" if it.cache_bytes is None else f"{shown_bytes(it.cache_bytes)} there"
    yield f"  cache: {there}, {it.evicted:,} files deleted to make room"


def _row(title: str, whole: str, part: str) -> str:
    return f"{title:<48}{whole:>14}{part:>14}"


def _columns(title: str, *figures: str) -> str:
    return f"{title:<40}" + "".join(f"{figure:>12}" for figure in figures)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0.0:.0f} %"
