"""How many samples of an epoch may come by range because their shards come late: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

N_FREE_BATCHES: Final = 4
PER_CENT: Final = 1


@dataclass(frozen=True, slots=True)
class RangeBudget:
    """What one reader may ask for. It counts its own samples from where it began: the first is number 0.

    Where reading begins nothing can be there yet, so all samples of the first four global batches may come by range.
    From then on the shards ought to be ahead of the reader: one per cent of its samples may, else it waits for shards,
    unless it bridges the time until they have come (see `Demand`).
    A range costs a request, so a whole epoch by range would cost some thousand times the requests of its shards.
    """

    n_free: int

    @classmethod
    def of(cls, batch_size: int, worker: int, n_workers: int) -> RangeBudget:
        """The budget of one of a rank's workers, which share its batches by turns."""
        return cls(batch_size * len(range(worker, N_FREE_BATCHES, n_workers)))

    def allowed(self, begin: int, stop: int, used: int) -> int:
        """How many of the samples `begin` to `stop` may be asked for, after `used` from number `n_free` on."""
        if begin < self.n_free:
            return stop - begin
        return min(stop - begin, max(0, (stop - self.n_free) * PER_CENT // 100 - used))
