"""The sample ids that one worker of a rank reads: batches k = worker, worker + W, … of its rank."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.nodes.plan import EpochPlan

_SAMPLES_PER_CANONICAL_NODE: Final = 128
_FEWEST_PER_CALL: Final = 1 << 13
_MOST_PER_CALL: Final = 1 << 17


class WorkerReader:
    """Reads one worker's batches of an epoch in order. Owns the windows of the order that it stands in. For one thread.

    It plans ahead: at first just what is asked for, then up to 128 samples per canonical node of its node, at least
    8,192. To plan batch by batch would cost ten times as much.
    """

    def __init__(self, plan: EpochPlan, rank: int, worker: int, n_workers: int) -> None:
        if not 0 <= rank < plan.topology.n_ranks:
            raise OptionError(f"rank must be 0 or more and below {plan.topology.n_ranks}, got {rank}")
        if n_workers < 1 or not 0 <= worker < n_workers:
            raise OptionError(f"worker must be 0 or more and below n_workers, got {worker} of {n_workers}")
        self._plan = plan
        self._rank = rank
        self._n_workers = n_workers
        self._reader = plan.order.reader()
        n_canonical_nodes = sum(sub_order.n_canonical_nodes for sub_order in plan.order.sub_orders)
        useful = _SAMPLES_PER_CANONICAL_NODE * -(-n_canonical_nodes // plan.topology.n_nodes)
        self._most_per_call = min(max(_FEWEST_PER_CALL, useful), _MOST_PER_CALL)
        self._per_call = 1
        self._next_planned = worker  # the next batch to plan
        self._next_handed = worker  # the next batch to hand out
        self._ids = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)

    @property
    def position(self) -> int:
        """A lower bound on the positions that `next_ids` has still to return."""
        return min(self._plan.start + self._next_handed * self._plan.global_batch, self._plan.stop)

    def next_ids(self, min_samples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids of the next batches, batch after batch, and the length of each.

        int64 (sample,), int64 (batch,). The batches are whole, at least one, with `min_samples` in all or a little
        more. There are fewer only at the end of the epoch; after it the arrays are empty.
        """
        wanted = max(1, min_samples)
        while len(self._ids) < wanted and self._next_planned < self._plan.n_batches:
            self._plan_more(wanted - len(self._ids))
        n_batches = min(int(np.searchsorted(np.cumsum(self._lengths), wanted, "left")) + 1, len(self._lengths))
        lengths, self._lengths = self._lengths[:n_batches], self._lengths[n_batches:]
        n_ids = int(lengths.sum())
        ids, self._ids = self._ids[:n_ids], self._ids[n_ids:]
        self._next_handed += n_batches * self._n_workers
        return ids, lengths

    def _plan_more(self, wanted: int) -> None:
        n_samples = max(wanted, self._per_call)
        self._per_call = min(self._most_per_call, 4 * n_samples)
        n_batches = -(-n_samples // self._plan.batch_size)
        stop = min(self._next_planned + n_batches * self._n_workers, self._plan.n_batches)
        ks = np.arange(self._next_planned, stop, self._n_workers, dtype=np.int64)
        self._next_planned += n_batches * self._n_workers
        positions, lengths = self._plan.rank_batches(self._rank, ks)
        ids = self._reader.ids(self._plan.source(positions))
        # Under `exact` a rank may get no sample of the last batch. Then it has no such batch.
        self._lengths = np.concatenate([self._lengths, lengths[lengths > 0]])
        self._ids = np.concatenate([self._ids, ids])
