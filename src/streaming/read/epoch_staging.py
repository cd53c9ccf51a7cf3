"""Which samples of an epoch come by range, and when they are asked for: one or two batches before they are read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.errors import StorageError
from streaming.fetch.protocol import Reason
from streaming.read.demand import Demand
from streaming.read.finding import SampleFinder
from streaming.read.range_budget import RangeBudget
from streaming.read.shard_files import ShardFiles
from streaming.read.staging import RangeReader, Stage, Staged
from streaming.read.stretches import Stretch

_ASK_AGAIN_S = 0.05
_GUESSED_BATCH_S = 0.1  # from one batch of a rank to the next, before any was read
_N_AHEAD = 2  # stretches begun beyond the present one: the offsets of the second come while the records of the first do


@dataclass(slots=True)
class _Coming:
    """A stretch, and what of it is on its way by range."""

    stretch: Stretch
    stages: dict[Reason, Stage]
    n_paid: int  # samples that count against the budget
    is_open: bool  # whether more of it may come by range, if shards come faster than training takes samples

    def hasten(self, *, is_patient: bool = True) -> None:
        for reason, stage in self.stages.items():
            with _unless_late(reason):
                stage.hasten(is_patient=is_patient)


@dataclass(frozen=True, slots=True)
class Turn:
    """Which of a rank's workers reads, all of which give their batches by turns."""

    worker: int
    n_workers: int

    def due_s(self, n_batches: int) -> float:
        """When a batch will be needed before which this worker reads so many: a guess, for the start."""
        return _GUESSED_BATCH_S * (n_batches * self.n_workers + self.worker)


class EpochStaging:
    """One reader's samples of one epoch whose shards are not on disk. For one thread.

    Three reasons: the shard will come too late (`AHEAD`, within a budget, and beyond it while shards come faster than
    training takes samples; else the reader waits for the shard), it is not worth fetching (`FEW`), it could not be
    placed on disk (`NO_ROOM`).
    """

    def __init__(
        self,
        ranges: RangeReader,
        files: ShardFiles,
        finder: SampleFinder,
        budget: RangeBudget,
        thin: NDArray[np.bool_] | None,
        turn: Turn,
        demand: Demand,
        clock: Callable[[], float],
    ) -> None:
        self._ranges, self._files, self._finder = ranges, files, finder
        self._budget = budget
        self._turn = turn
        self._demand = demand
        self._thin = thin
        self._clock = clock
        self._n_begun = 0  # samples whose coming was decided
        self._n_used = 0  # of the budget, beyond its free part
        self._pace_s = 0.0  # from one sample to the next, lately

    def staged(self, stretches: Iterator[Stretch]) -> Iterator[tuple[Stretch, Staged]]:
        """Each stretch when it is to be read, with what has come of it."""
        coming: deque[_Coming] = deque()
        self._begin(stretches, coming, 1)
        for first in coming:
            first.hasten()  # before the shards are announced, which comes with the next stretch
        self._begin(stretches, coming, 1 + _N_AHEAD)
        is_first = True
        while coming:
            present = coming.popleft()
            staged = self._arrived(present)
            if coming:
                coming[0].hasten(is_patient=not is_first)  # the first batch of all is not to wait for the second
            is_first = False
            begun_s = self._clock()
            yield present.stretch, staged
            self._pace_s = (self._clock() - begun_s) / len(present.stretch)
            self._begin(stretches, coming, _N_AHEAD)

    def _begin(self, stretches: Iterator[Stretch], coming: deque[_Coming], n: int) -> None:
        """Have so many stretches be on their way."""
        while len(coming) < n and (stretch := next(stretches, None)) is not None:
            n_samples = sum(len(each.stretch) for each in coming)
            due_s = self._pace_s * n_samples if self._pace_s else self._turn.due_s(len(coming))
            tables = {shard for each in coming for stage in each.stages.values() for shard in stage.tables}
            coming.append(self._begun(stretch, due_s, tables))

    def _begun(self, stretch: Stretch, due_s: float, tables: set[int]) -> _Coming:
        begin = self._n_begun
        self._n_begun += len(stretch)
        stages: dict[Reason, Stage] = {}
        n_paid, is_open = 0, False
        for reason, rows in self._missing(stretch).items():
            demand = 0.0
            if reason is Reason.AHEAD:
                n_wanted = sum(map(len, rows.values()))
                if n_wanted <= self._budget.allowed(begin, self._n_begun, self._n_used):
                    n_paid = n_wanted if begin >= self._budget.n_free else 0
                elif (taken := self._demanded(stretch)) is not None:
                    demand, is_open = taken, True
                else:
                    is_open = True
                    continue  # some of it would have to be waited for anyway
            with _unless_late(reason):
                asked = {shard: list(of) for shard, of in rows.items()}
                stages[reason] = self._ranges.begin(asked, reason, due_s=due_s, demand=demand, after=tables)
        self._n_used += n_paid
        return _Coming(stretch, stages, n_paid, is_open)

    def _bridge(self, stretch: Stretch, staged: Staged) -> None:
        """It is to be read now, and what is not `staged` must be waited for: ask until it is known who is faster.

        That is a moment after the first batches, of which each worker has one or two.
        """
        end_s = self._clock() + self._demand.expected_within_s
        while True:
            missing = self._missing(stretch).get(Reason.AHEAD, {})
            asked = {shard: list(rows) for shard, rows in missing.items() if shard not in staged}
            if not asked:
                return
            demand, came = self._demanded(stretch), Staged()
            if demand is not None:
                with _unless_late(Reason.AHEAD):
                    came = self._ranges.begin(asked, Reason.AHEAD, demand=demand).arrive()
            staged |= came
            if self._clock() >= end_s:
                return
            if not came:
                time.sleep(_ASK_AGAIN_S)

    def _demanded(self, stretch: Stretch) -> float | None:
        """Bytes a second that training takes of samples like these."""
        return self._demand.bytes_per_s(float(self._files.mean_record_bytes(stretch.shards).mean()))

    def _missing(self, stretch: Stretch) -> dict[Reason, dict[int, dict[int, None]]]:
        """The samples that may come by range: why, of which shard, which rows."""
        missing: dict[Reason, dict[int, dict[int, None]]] = {}
        if stretch.is_complete:
            return missing
        why = {shard: self._why(shard) for shard in np.unique(stretch.shards).tolist()}
        for shard, row in zip(stretch.shards.tolist(), stretch.rows.tolist()):
            reason = why[shard]
            if reason is not None:
                missing.setdefault(reason, {}).setdefault(shard, {})[row] = None
        return missing

    def _why(self, shard: int) -> Reason | None:
        files = self._files
        if not files.by_parts[shard] or self._finder.is_open(shard) or files.is_present(shard):
            return None
        if self._thin is not None and self._thin[shard]:
            return Reason.FEW
        return Reason.NO_ROOM if shard in self._finder.without_room else Reason.AHEAD

    def _arrived(self, coming: _Coming) -> Staged:
        """What has come of a stretch."""
        staged: Staged = {}
        n_early = 0
        for reason, stage in coming.stages.items():
            with _unless_late(reason):
                came = stage.arrive()
                n_early += sum(map(len, came.values())) if reason is Reason.AHEAD else 0
                staged |= came
        if coming.n_paid:
            self._n_used -= coming.n_paid - n_early  # what was not granted is not paid for
        if coming.is_open:
            self._bridge(coming.stretch, staged)
        return staged


def _unless_late(reason: Reason) -> AbstractContextManager[None]:
    """Of what would only have come earlier an error is not the reader's: it waits for the shard, or is told then."""
    return suppress(StorageError) if reason is Reason.AHEAD else nullcontext()
