"""Samples of an epoch that come by range, asked for one or two batches before they are read.

A reader describes what it needs (`RangeAsk`); `fetch.decide.ranges` says which samples come this way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ClosedError, StorageError
from streaming.fetch.decide.ranges import FileFacts, RangeRules, Verdict, decide, free_samples
from streaming.fetch.wire import RangeAsk, Reason
from streaming.read.epoch.read_ahead import Segment
from streaming.read.shards.lookup import SampleLookup
from streaming.read.shards.range_reader import PartialShards, RangeRead, RangeReader
from streaming.read.telemetry.counters import Count, SharedCounters

_ASK_AGAIN_S: Final = 0.05
_GUESSED_BATCH_S: Final = 0.1
"""Seconds from one batch of a rank to the next, guessed before any was read."""
_N_AHEAD: Final = 2
"""Segments begun beyond the present one: the offsets of the second come while the records of the first do."""
_RATE_AGAIN_S: Final = 0.1
_RATE_WITHIN_S: Final = 5.0
"""Seconds within which the training rate is known; later, training does something that takes long, and can wait."""
_LEAST_BATCHES: Final = 3
"""Batches after which the training rate is known."""


class TrainingRate:
    """The bytes of samples that training on this machine consumes a second when it need not wait. For one thread."""

    def __init__(
        self,
        counters: SharedCounters,
        batch_size: int,
        n_ranks: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_counted: bool,
    ) -> None:
        """`n_ranks`: ranks of this machine, each of which takes `batch_size` samples a step.

        `is_counted`: another process counts the batches while this one reads and waits.
        """
        self._counters, self._n_samples, self._clock = counters, batch_size * n_ranks, clock
        self._asked_s = float("-inf")
        self._step_s: float | None = None
        self._ends_s = clock() + _RATE_WITHIN_S if is_counted else float("-inf")

    @property
    def expected_within_s(self) -> float:
        """Seconds for which it is worth waiting until the rate is known."""
        return max(0.0, self._ends_s - self._clock())

    def bytes_per_s(self, sample_bytes: float) -> float | None:
        """The rate for samples of this size; None if no `StreamingDataLoader` counts, or it has hardly begun."""
        now_s = self._clock()
        if now_s - self._asked_s > _RATE_AGAIN_S:
            self._asked_s = now_s
            self._step_s = self._measured_s()
        if self._step_s is None:
            return None
        return self._n_samples * sample_bytes / max(1e-9, self._step_s)

    def _measured_s(self) -> float | None:
        try:
            is_known = self._counters.reading()[Count.BATCHES] >= _LEAST_BATCHES
            return self._counters.shortest_step_s() if is_known else None
        except ClosedError:  # workers may go on without their dataset
            return None


@dataclass(frozen=True, slots=True)
class WorkerTurn:
    """Which of a rank's workers reads; they deliver its batches in turn."""

    worker: int
    n_workers: int
    batch_size: int

    def due_s(self, n_batches: int) -> float:
        """Guess the seconds until a batch is needed before which this worker reads `n_batches`."""
        return _GUESSED_BATCH_S * (n_batches * self.n_workers + self.worker)

    def n_free(self, rules: RangeRules) -> int:
        """The worker's samples of its rank's first batches."""
        return free_samples(self.batch_size, self.worker, self.n_workers, rules)


@dataclass(slots=True)
class _Coming:
    """A segment, and the samples of it that are under way by range."""

    segment: Segment
    first: int
    """The number of its first sample among those of the reader."""
    reads: dict[Reason, RangeRead] = field(default_factory=dict)
    n_late: int = 0
    """Samples that count against the budget for late shards, if they are granted within it."""
    is_open: bool = False
    """Whether to ask again when the segment is read."""

    def hasten(self, *, is_patient: bool = True) -> None:
        """Begin to fetch the records, once it is known where they lie."""
        for reason, read in self.reads.items():
            with _suppress_if_ahead(reason):
                read.hasten(is_patient=is_patient)


class EarlyRanges:
    """The samples of one reader's epoch whose shards are not on disk. For one thread.

    There are three reasons to ask for them: the shard will be late (`AHEAD`), it is not worth fetching (`FEW`), or it
    cannot be placed on disk (`NO_ROOM`).
    """

    def __init__(
        self,
        ranges: RangeReader,
        lookup: SampleLookup,
        sparse: NDArray[np.bool_] | None,
        turn: WorkerTurn,
        rate: TrainingRate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sparse`: shards that are not worth fetching, bool (shard,); None if there are none."""
        self._ranges, self._lookup = ranges, lookup
        self._sparse = sparse
        self._turn = turn
        self._rate = rate
        self._clock = clock
        self._rules = ranges.rules
        self._n_begun = 0  # samples of the segments that were begun
        self._n_late = 0  # samples that came, or are asked for, within the budget for late shards
        self._pace_s = 0.0  # from one sample to the next, lately

    def segments(self, segments: Iterator[Segment]) -> Iterator[tuple[Segment, PartialShards]]:
        """Each segment when it is to be read, with the samples of it that have come by range."""
        coming: deque[_Coming] = deque()
        self._begin(segments, coming, 1)
        for first in coming:
            first.hasten()  # before any shard is announced, which happens when the next segment is planned
        self._begin(segments, coming, 1 + _N_AHEAD)
        is_first = True
        while coming:
            present = coming.popleft()
            partials = self._arrived(present)
            if coming:
                coming[0].hasten(is_patient=not is_first)  # the very first batch must not wait for the second
            is_first = False
            begun_s = self._clock()
            yield present.segment, partials
            self._pace_s = (self._clock() - begun_s) / len(present.segment)
            self._begin(segments, coming, _N_AHEAD)

    def _begin(self, segments: Iterator[Segment], coming: deque[_Coming], n: int) -> None:
        """Begin segments until `n` are under way, or none is left."""
        while len(coming) < n and (segment := next(segments, None)) is not None:
            n_samples = sum(len(each.segment) for each in coming)
            due_s = self._pace_s * n_samples if self._pace_s else self._turn.due_s(len(coming))
            tables = {shard for each in coming for read in each.reads.values() for shard in read.tables}
            coming.append(self._begun(segment, due_s, tables))

    def _begun(self, segment: Segment, due_s: float, tables: set[int]) -> _Coming:
        """Ask for the missing samples of a segment. `tables`: shards whose offset tables come with earlier segments."""
        coming = _Coming(segment, self._n_begun)
        self._n_begun += len(segment)
        for reason, rows in self._missing(segment).items():
            ask = self._ask(coming, reason, rows, due_s)
            if self._is_hopeless(ask):
                coming.is_open = True
                continue  # some of its shards would have to be waited for anyway
            with _suppress_if_ahead(reason):
                asked = {shard: list(of) for shard, of in rows.items()}
                coming.reads[reason] = self._ranges.begin(asked, ask, after=tables)
            if reason is Reason.AHEAD and coming.first >= ask.n_free:
                coming.n_late = ask.n_samples
        self._n_late += coming.n_late
        return coming

    def _arrived(self, coming: _Coming) -> PartialShards:
        """Wait for the samples of a segment, and return those that were granted."""
        partials: PartialShards = {}
        n_came_late = 0
        for reason, read in coming.reads.items():
            with _suppress_if_ahead(reason):
                came = read.arrive()
                if reason is Reason.AHEAD:
                    n_came_late = sum(map(len, came.values())) if read.is_late else 0
                    coming.is_open |= not read.is_late
                partials |= came
        if coming.n_late:
            self._n_late -= coming.n_late - n_came_late  # samples that were not granted are not paid for
        if coming.is_open:
            self._bridge(coming, partials)
        return partials

    def _bridge(self, coming: _Coming, partials: PartialShards) -> None:
        """Ask for the rest of a segment that is to be read now, until it is known whether the store outruns training.

        It is known a moment after the first batches, of which each worker has one or two.
        """
        end_s = self._clock() + self._rate.expected_within_s
        while True:
            missing = self._missing(coming.segment).get(Reason.AHEAD, {})
            rows = {shard: list(of) for shard, of in missing.items() if shard not in partials}
            if not rows:
                return
            ask = self._ask(coming, Reason.AHEAD, missing, 0.0)
            came: PartialShards = {}
            if not self._is_hopeless(ask):
                with _suppress_if_ahead(Reason.AHEAD):
                    came = self._ranges.begin(rows, ask).arrive()
            partials |= came
            if self._clock() >= end_s:
                return
            if not came:
                time.sleep(_ASK_AGAIN_S)

    def _ask(self, coming: _Coming, reason: Reason, rows: dict[int, dict[int, None]], due_s: float) -> RangeAsk:
        """Describe these samples to the fetcher."""
        if reason is not Reason.AHEAD:
            return RangeAsk(reason, due_s)
        segment = coming.segment
        mean_bytes = float(self._ranges.files.mean_record_bytes(segment.shards).mean())
        return RangeAsk(
            reason,
            due_s,
            n_samples=sum(map(len, rows.values())),
            first=coming.first,
            stop=coming.first + len(segment),
            n_free=self._turn.n_free(self._rules),
            n_late=self._n_late,
            training_bytes_per_s=self._rate.bytes_per_s(mean_bytes),
        )

    def _is_hopeless(self, ask: RangeAsk) -> bool:
        """Whether the samples would be refused whatever the fetcher knows, so that it need not be asked."""
        return decide(ask, FileFacts(is_present=False), float("inf"), self._rules) is Verdict.WAIT

    def _missing(self, segment: Segment) -> dict[Reason, dict[int, dict[int, None]]]:
        """The samples that may come by range: reason → shard → rows."""
        missing: dict[Reason, dict[int, dict[int, None]]] = {}
        if segment.is_complete:
            return missing
        reasons = {shard: self._reason(shard) for shard in np.unique(segment.shards).tolist()}
        for shard, row in zip(segment.shards.tolist(), segment.rows.tolist()):
            reason = reasons[shard]
            if reason is not None:
                missing.setdefault(reason, {}).setdefault(shard, {})[row] = None
        return missing

    def _reason(self, shard: int) -> Reason | None:
        """Why samples of the shard should come by range; None if they need not, or cannot."""
        if not self._lookup.is_absent(shard):
            return None
        if self._sparse is not None and self._sparse[shard]:
            return Reason.FEW
        return Reason.NO_ROOM if shard in self._lookup.without_room else Reason.AHEAD


def _suppress_if_ahead(reason: Reason) -> AbstractContextManager[None]:
    """Suppress the store's errors for samples that would only have come earlier: waiting for the shard shows them."""
    return suppress(StorageError) if reason is Reason.AHEAD else nullcontext()
