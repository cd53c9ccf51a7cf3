"""How many samples may come by range because their shards are late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from streaming.read.epoch.range_budget import N_FREE_BATCHES, RangeBudget

WORKERS = st.tuples(st.integers(1, 64), st.integers(1, 9)).flatmap(
    lambda drawn: st.tuples(st.just(drawn[0]), st.integers(0, drawn[1] - 1), st.just(drawn[1]))
)


def _spent(budget: RangeBudget, lengths: list[int], wanted: list[int]) -> tuple[int, int]:
    """How much a reader that always asks for as much as it may and wants gets, in the free part and beyond."""
    begin = free = used = 0
    for length, want in zip(lengths, wanted):
        got = min(want, length, budget.allowed(begin, begin + length, used))
        if begin < budget.n_free:
            free += got
        else:
            used += got
        begin += length
    return free, used


@given(worker=WORKERS, n_batches=st.integers(0, 3000), seed=st.integers(0, 100))
def test_beyond_the_first_four_global_batches_at_most_one_per_cent_comes_by_range(
    worker: tuple[int, int, int], n_batches: int, seed: int
) -> None:
    """Whatever is wanted and when: four global batches over all workers of a rank, later one sample in a hundred."""
    batch_size, number, n_workers = worker
    budget = RangeBudget.of(batch_size, number, n_workers)
    wanted = [(seed * 7919 + k * 104729) % (batch_size + 1) for k in range(n_batches)]
    free, used = _spent(budget, [batch_size] * n_batches, wanted)
    assert free <= budget.n_free
    assert 100 * used <= max(0, n_batches * batch_size - budget.n_free)


@given(batch_size=st.integers(1, 64), n_workers=st.integers(1, 9))
def test_all_workers_together_have_four_batches_free(batch_size: int, n_workers: int) -> None:
    """However many workers share a rank's batches."""
    budgets = [RangeBudget.of(batch_size, worker, n_workers) for worker in range(n_workers)]
    assert sum(budget.n_free for budget in budgets) == N_FREE_BATCHES * batch_size


@given(worker=WORKERS, length=st.integers(1, 64))
def test_the_first_batches_come_whole(worker: tuple[int, int, int], length: int) -> None:
    """Where reading begins nothing that is missing is refused."""
    budget = RangeBudget.of(*worker)
    for begin in range(0, budget.n_free, length):
        assert budget.allowed(begin, begin + length, 0) == length


@given(begin=st.integers(0, 10**12), length=st.integers(1, 10**4), used=st.integers(0, 10**10))
def test_what_is_allowed_is_never_negative_nor_more_than_there_is(begin: int, length: int, used: int) -> None:
    """At any place, after any use."""
    assert 0 <= RangeBudget(64).allowed(begin, begin + length, used) <= length


def test_what_was_not_used_may_be_used_later() -> None:
    """One in a hundred over all that was read, not of each batch."""
    budget = RangeBudget(128)
    assert budget.allowed(128, 160, 0) == 0
    assert budget.allowed(1096, 1128, 0) == 10
    assert budget.allowed(1096, 1128, 8) == 2
