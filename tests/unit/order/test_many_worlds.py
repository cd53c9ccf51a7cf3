"""One global batch over many worlds and workers: no setting to pin, and no impossible world."""

from __future__ import annotations

import numpy as np
import pytest

from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology, WorkerReader

GLOBAL_BATCH = 48
WORLDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)


@pytest.mark.parametrize("batching", ["random", "stratified", "per_stream"])
def test_every_world_that_divides_the_global_batch_sees_the_same_batches(batching: str) -> None:
    """On 1 to 48 ranks with 1, 3 and 8 workers each, every global batch is one set, and the epoch comes whole."""
    catalog = Catalog(np.array([37, 1, 80, 0, 19, 64, 5, 23, 90, 11]), np.array([6, 4]))
    unit = GLOBAL_BATCH if batching == "per_stream" else None
    order = EpochOrder(OrderSpec(shuffle=True, shuffle_block_size=20, batching_method=batching), catalog, 2, unit=unit)
    whole = order.take(0, order.n_samples)
    n_whole = order.n_samples // GLOBAL_BATCH
    for n_ranks in WORLDS:
        for ranks_per_node in {1, n_ranks, max(n for n in (1, 2, 4, 8) if n_ranks % n == 0)}:
            plan = EpochPlan(order, Topology(n_ranks, ranks_per_node), GLOBAL_BATCH // n_ranks)
            for n_workers in (1, 3, 8):
                batches: list[list[int]] = [[] for _ in range(plan.n_batches)]
                for rank in range(n_ranks):
                    for worker in range(n_workers):
                        ids, lengths = WorkerReader(plan, rank, worker, n_workers).next_ids(10**6)
                        for k, batch in enumerate(np.split(ids, np.cumsum(lengths)[:-1])):
                            if len(batch):
                                batches[worker + k * n_workers] += batch.tolist()
                for k in range(n_whole):
                    expected = whole[k * GLOBAL_BATCH : (k + 1) * GLOBAL_BATCH]
                    assert sorted(batches[k]) == sorted(expected.tolist()), (n_ranks, ranks_per_node, n_workers, k)
                assert set(whole.tolist()) == {sample for batch in batches for sample in batch}
