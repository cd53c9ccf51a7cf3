"""What keeps training waiting: a pure decision from measured times."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from streaming.units import shown_bytes

_BUSY: Final = 0.7  # a reader that runs for this share of its time counts as fully busy
_ALL_CORES: Final = 0.8  # cores of which this share runs count as taken
_CROWDED: Final = 1.2  # processes per core


@dataclass(frozen=True, slots=True)
class WaitRules:
    """When to warn that training waits for data.

    Warn if it waits for more than `share` of the time, over at least `min_s` seconds and `min_batches` batches. The
    first `n_first` batches of each epoch do not count, nor does one more for each worker, since workers are starting
    and filling their queues. Name the same cause again after `again_s` seconds at the earliest.
    """

    share: float = 0.1
    min_s: float = 20.0
    min_batches: int = 20
    n_first: int = 4
    again_s: float = 600.0

    def is_enough(self, n_batches: int, seconds: float) -> bool:
        """Whether these batches, which took `seconds`, suffice for a judgement."""
        return n_batches >= self.min_batches and seconds >= self.min_s


class Cause(enum.Enum):
    """What keeps training waiting."""

    NETWORK = "network"
    DECODE = "decode"
    HAND_OVER = "hand-over"


@dataclass(frozen=True, slots=True)
class Window:
    """Measurements over some batches of one rank. Seconds of readers are summed over its workers."""

    n_batches: int
    waited_s: float
    """Training waited for a batch."""
    worked_s: float
    """Training did something else."""
    n_workers: int
    """0: samples are made in the training process itself."""
    n_cores: int
    """Cores of the machine, divided by its ranks."""
    load: float
    """Processes that run or want to, per core of the machine: the kernel's average over a minute."""
    fetching_s: float
    """Readers waited for the fetcher."""
    cpu_s: float
    """Readers were running."""
    idle_s: float
    """Readers did neither."""

    @property
    def total_s(self) -> float:
        """Seconds that the batches took."""
        return self.waited_s + self.worked_s

    @property
    def readers_s(self) -> float:
        """Seconds that readers have reported."""
        return self.fetching_s + self.cpu_s + self.idle_s

    def is_over(self, rules: WaitRules) -> bool:
        """Whether it can be judged: it is long enough, and workers have reported half of their time.

        They report at the end of a segment.
        """
        is_enough = rules.is_enough(self.n_batches, self.total_s)
        return is_enough and 2 * self.readers_s >= self.n_workers * self.total_s


def bottleneck(it: Window, rules: WaitRules) -> Cause | None:
    """Decide what kept training waiting in a window that is over; None if it hardly waited.

    While training waits, all workers but the late one may have nothing to do, so their idleness says little.
    """
    if it.waited_s <= rules.share * it.total_s:
        return None
    may_be_network = 2 * it.fetching_s >= it.waited_s
    if not it.n_workers:
        return Cause.NETWORK if may_be_network else Cause.DECODE
    if it.cpu_s >= _BUSY * it.readers_s or it.cpu_s >= _ALL_CORES * it.n_cores * it.total_s:
        return Cause.DECODE
    if may_be_network:
        return Cause.NETWORK
    # A reader that waits for a core looks idle, too.
    return Cause.DECODE if it.cpu_s >= it.idle_s or it.load >= _CROWDED else Cause.HAND_OVER


@dataclass(frozen=True, slots=True)
class Fetching:
    """What the machine's fetcher did during a window, for all jobs that share it."""

    bytes_per_s: float
    moving: int
    queued: int
    evicted: int


def warning(cause: Cause, it: Window, rank: int, fetching: Fetching | None) -> str:
    """Say what is wrong, in numbers, and what to do about it."""
    said = (
        f"rank {rank} waits for data {100 * it.waited_s / it.total_s:.0f} % of the time ({it.waited_s:.1f} of "
        f"{it.total_s:.1f} s, {it.n_batches:,} batches)"
    )
    return f"{said}; the bottleneck is {_ADVICE[cause](it, fetching)}; dataset.stats() has the numbers"


def _network(it: Window, fetching: Fetching | None) -> str:
    said = f"the network: {_readers(it)} waited {it.fetching_s:.1f} s for shards and ranges"
    remedy = (
        "fetch earlier (a larger predownload, if it is set), fetch less (compressed shards, a smaller "
        "shuffle_block_size), or get more bandwidth"
    )
    if fetching is not None:
        said += (
            f", while this machine fetched {shown_bytes(fetching.bytes_per_s)}/s, with {fetching.moving:,} transfers "
            f"under way and {fetching.queued:,} queued"
        )
        if fetching.evicted:
            remedy = (
                f"{fetching.evicted:,} files were deleted meanwhile to keep cache_limit, so raise it if shards come "
                f"more than once; or {remedy}"
            )
    return f"{said}; {remedy}"


def _decode(it: Window, _: Fetching | None) -> str:
    if not it.n_workers:
        return "decode: samples are made in the training process itself; give the loader num_workers"
    cores = it.cpu_s / it.total_s
    said = (
        f"decode: {_readers(it)} kept {cores:.1f} cores busy of {it.n_cores} that are there for this rank, and "
        f"{it.load:.1f} processes wanted each core"
    )
    if cores >= _ALL_CORES * it.n_cores or it.load >= _CROWDED:
        return f"{said}; get more cores, or make samples cheaper (smaller images, fewer columns, less in get_item)"
    return f"{said}; give the loader more num_workers, or make samples cheaper to decode"


def _hand_over(it: Window, _: Fetching | None) -> str:
    return (
        f"the hand-over of batches: {_readers(it)} were idle {it.idle_s:.1f} s, and neither ran nor waited for shards; "
        "get_item or collate may wait for something else (another disk or service, a lock), or batches are slow to "
        "pass between processes: fewer or smaller tensors, a larger prefetch_factor"
    )


def _readers(it: Window) -> str:
    return "1 worker" if it.n_workers == 1 else f"{it.n_workers} workers" if it.n_workers else "the reader"


_ADVICE: Final = {Cause.NETWORK: _network, Cause.DECODE: _decode, Cause.HAND_OVER: _hand_over}
