"""By range, or wait for the shard? All rules of this question, and the one decision. Pure: times and states come in.

A range costs a request, and 10⁹ samples by range cost ten thousand times the requests of their shards. So samples come
by range only for a reason (`Reason`), and within these rules:

1. A file that is on disk is read there.
2. RANDOM: always, unless a thread asks for row after row of a shard: it gets the shard.
3. AHEAD, for a shard that will be late: all samples of a reader's first batches, since nothing can be on disk then;
   afterwards a small share of its samples; and more as long as files come clearly faster than training consumes them,
   since then a window that is still coming is worth bridging. Otherwise the reader waits for the shard.
4. FEW, where so little of a shard is needed that it is not worth fetching; NO_ROOM, where it cannot be placed: always.
5. A file of which much has been asked for by RANDOM or FEW is fetched whole, after all that is announced.
6. Ranges of one file that lie close are joined. All requests of a machine share one budget: a reader that overdraws it
   waits until it is made up for, or for its shard if that would be sooner.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from streaming.fetch.wire.protocol import MAX_OBJECT_BYTES, RangeAsk, Reason

F = TypeVar("F", bound=Hashable)

_MAX_FILES: Final = 100_000
"""Files of which it is remembered how much was asked for."""


@dataclass(frozen=True, slots=True)
class RangeRules:
    """Every constant of the question. A fetcher sends its own in the answer to Hello."""

    # What ranges may cost a machine.
    at_once: int = 48
    """Requests under way; with the transfers of whole files 64 connections."""
    per_s: float = 200.0
    """Requests a second."""
    burst: float = 2048.0
    """Requests after a while without any: the first batches of an epoch come this way."""
    gap_bytes: int = 256 << 10
    """Ranges of one file that lie closer are joined, and what lies between them is fetched too."""
    longest_bytes: int = 16 << 20
    """The longest joined range."""

    # What a reader may ask for together.
    together_bytes: int = 64 << 20
    """Bytes of records in one message. One larger record is still fetched,"""
    record_bytes: int = MAX_OBJECT_BYTES
    """up to this size, which the protocol's limit bounds. A larger one is read from its shard, which is waited for."""
    list_samples: int = 1024
    """Samples of a list of numbers that are read together,"""
    list_bytes: int = 32 << 20
    """and their bytes, of which only averages are known when the list is cut. So this is half of `together_bytes`:
    records beyond that would come one by one."""
    table_bytes: int = 256 << 10
    """A shard's table of offsets up to this size is fetched whole, and kept; of a larger one the offsets asked for."""

    # When the whole file is the better choice.
    whole_share: float = 0.5
    """The share of a file's bytes that is asked for before it is fetched whole."""
    whole_ranges: int = 500
    """The same in ranges."""
    walk_steps: int = 8
    """Rows asked for in sequence by one thread, after which it waits for the shard."""
    sparse_share: float = 1 / 16
    """A shard is sparse, not worth fetching, if this machine needs less than this share of its rows in an epoch,"""
    sparse_rows: int = 500
    """and fewer rows than this."""

    # Samples of an epoch whose shards are late.
    free_batches: int = 4
    """Global batches, from where reading begins, whose samples may all come by range."""
    late_per_cent: int = 1
    """Of a reader's samples after these, how many per cent may."""
    in_time_s: float = 0.05
    """A file that comes this much too late is in time."""
    clearly_faster: float = 1.5
    """Files must come so many times as fast as training consumes samples for a late shard to be bridged."""
    late_waits_s: float = 5.0
    """How long a late sample may wait for the budget of requests: a shard would take longer."""
    yields_s: float = 3.0
    """How long the transfer of a whole file may be put off, in its life, for the first batches of readers."""


class Verdict(enum.Enum):
    """What becomes of the samples of one file."""

    ON_DISK = "on disk"
    WAIT = "wait for the shard"
    GRANT = "by range"
    BRIDGE = "by range, beyond the budget for late shards"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the fetcher knows of a file. `left_s`: seconds until it is on disk, infinite if it does not move."""

    is_present: bool
    left_s: float = float("inf")


def decide(ask: RangeAsk, file: FileFacts, store_bytes_per_s: float | None, rules: RangeRules) -> Verdict:
    """Whether the samples of `ask` that lie in `file` come by range.

    `store_bytes_per_s`: how fast files have come lately, None if that is not known.
    """
    if file.is_present:
        return Verdict.ON_DISK
    if ask.reason is Reason.RANDOM:
        return Verdict.WAIT if ask.n_steps >= rules.walk_steps else Verdict.GRANT
    if ask.reason is not Reason.AHEAD:
        return Verdict.GRANT
    if file.left_s <= max(0.0, ask.due_s) + rules.in_time_s:
        return Verdict.WAIT
    if ask.n_samples <= late_samples_allowed(ask, rules):
        return Verdict.GRANT
    return Verdict.BRIDGE if outruns(store_bytes_per_s, ask.training_bytes_per_s, rules) else Verdict.WAIT


def late_samples_allowed(ask: RangeAsk, rules: RangeRules) -> int:
    """How many samples of a segment may come by range because their shards are late."""
    n_samples = ask.stop - ask.first
    if ask.first < ask.n_free:
        return n_samples
    return min(n_samples, max(0, (ask.stop - ask.n_free) * rules.late_per_cent // 100 - ask.n_late))


def free_samples(batch_size: int, worker: int, n_workers: int, rules: RangeRules) -> int:
    """How many samples of a worker lie in the first batches of its rank, which the workers read in turn."""
    return batch_size * len(range(worker, rules.free_batches, n_workers))


def outruns(store_bytes_per_s: float | None, training_bytes_per_s: float | None, rules: RangeRules) -> bool:
    """Whether files come clearly faster than training consumes samples, so that it is worth bridging the time."""
    if store_bytes_per_s is None or training_bytes_per_s is None:
        return False
    return store_bytes_per_s >= rules.clearly_faster * training_bytes_per_s


# --- requests


@dataclass(frozen=True, slots=True)
class JoinedRange:
    """One request: its bytes, and the numbers of the spans that it serves."""

    begin: int
    end: int
    members: tuple[int, ...]


def joined(spans: Sequence[tuple[int, int]], rules: RangeRules) -> list[JoinedRange]:
    """The requests that cover all spans (begin, end) of one file, each span by one of them."""
    requests: list[JoinedRange] = []
    for number in sorted(range(len(spans)), key=lambda number: spans[number]):
        begin, end = spans[number]
        last = requests[-1] if requests else None
        if (
            last is not None
            and begin - last.end < rules.gap_bytes
            and max(last.end, end) - last.begin <= rules.longest_bytes
        ):
            requests[-1] = JoinedRange(last.begin, max(last.end, end), (*last.members, number))
        else:
            requests.append(JoinedRange(begin, end, (number,)))
    return requests


class RangeBudget(Generic[F]):
    """The budget of requests, and how much has been asked of each file. Not thread-safe."""

    def __init__(self, rules: RangeRules, now_s: float) -> None:
        self.rules = rules
        self._tokens, self._counted_s = rules.burst, now_s
        self._asked: OrderedDict[F, tuple[int, int]] = OrderedDict()  # file → bytes, ranges

    def spend(self, n_requests: int, now_s: float, *, reason: Reason) -> float | None:
        """Take `n_requests` from the budget. The seconds until they may go; None if they may not.

        The budget may be overdrawn; a caller that does so waits until it is made up for. Late samples that would wait
        longer than for their shard are refused and spend nothing.
        """
        rules = self.rules
        self._tokens = min(rules.burst, self._tokens + max(0.0, now_s - self._counted_s) * rules.per_s)
        self._counted_s = max(self._counted_s, now_s)
        wait_s = max(0.0, (n_requests - self._tokens) / rules.per_s)
        if reason is Reason.AHEAD and wait_s > rules.late_waits_s:
            return None
        self._tokens -= n_requests
        return wait_s

    def is_much(self, file: F, n_file_bytes: int, n_bytes: int, n_ranges: int, *, reason: Reason) -> bool:
        """Note what was asked of a file (of -1 bytes if its size is unknown); whether to fetch it whole now.

        True once, and again only after as much more was asked for: then the file did not come, or has gone again.
        """
        if reason not in (Reason.RANDOM, Reason.FEW):
            return False
        before, n_before = self._asked.pop(file, (0, 0))
        n_bytes, n_ranges = before + n_bytes, n_before + n_ranges
        if n_ranges >= self.rules.whole_ranges or 0 <= self.rules.whole_share * n_file_bytes <= n_bytes:
            return True
        self._asked[file] = n_bytes, n_ranges
        while len(self._asked) > _MAX_FILES:
            self._asked.popitem(last=False)
        return False
