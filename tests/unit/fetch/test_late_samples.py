"""How many samples may come by range because their shards are late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming.fetch.decide.ranges import RangeRules, free_samples, late_samples_allowed
from streaming.fetch.wire import RangeAsk, Reason

RULES = RangeRules()
WORKERS = st.tuples(st.integers(1, 64), st.integers(1, 9)).flatmap(
    lambda drawn: st.tuples(st.just(drawn[0]), st.integers(0, drawn[1] - 1), st.just(drawn[1]))
)


def _allowed(first: int, stop: int, *, n_free: int, n_late: int = 0) -> int:
    ask = RangeAsk(Reason.AHEAD, n_samples=stop - first, first=first, stop=stop, n_free=n_free, n_late=n_late)
    return late_samples_allowed(ask, RULES)


def _spent(n_free: int, lengths: list[int], wanted: list[int]) -> tuple[int, int]:
    """What a reader gets that always asks for as much as it may and wants, in the free part and beyond."""
    first = free = late = 0
    for length, want in zip(lengths, wanted):
        got = min(want, length, _allowed(first, first + length, n_free=n_free, n_late=late))
        if first < n_free:
            free += got
        else:
            late += got
        first += length
    return free, late


@given(worker=WORKERS, n_batches=st.integers(0, 3000), seed=st.integers(0, 100))
def test_beyond_the_first_four_global_batches_at_most_one_per_cent_comes_by_range(
    worker: tuple[int, int, int], n_batches: int, seed: int
) -> None:
    """Whatever is wanted and when: four global batches over all workers of a rank, later one sample in a hundred."""
    batch_size, number, n_workers = worker
    n_free = free_samples(batch_size, number, n_workers, RULES)
    wanted = [(seed * 7919 + k * 104729) % (batch_size + 1) for k in range(n_batches)]
    free, late = _spent(n_free, [batch_size] * n_batches, wanted)
    assert free <= n_free
    assert 100 * late <= max(0, n_batches * batch_size - n_free)


@given(batch_size=st.integers(1, 64), n_workers=st.integers(1, 9))
def test_all_workers_together_have_four_batches_free(batch_size: int, n_workers: int) -> None:
    """However many workers share a rank's batches."""
    n_free = sum(free_samples(batch_size, worker, n_workers, RULES) for worker in range(n_workers))
    assert n_free == RULES.free_batches * batch_size == 4 * batch_size


@given(worker=WORKERS, length=st.integers(1, 64))
def test_the_first_batches_come_whole(worker: tuple[int, int, int], length: int) -> None:
    """Where reading begins, no missing sample is refused."""
    n_free = free_samples(*worker, RULES)
    for first in range(0, n_free, length):
        assert _allowed(first, first + length, n_free=n_free) == length


@given(
    first=st.integers(0, 10**12),
    length=st.integers(1, 10**4),
    n_free=st.integers(0, 1000),
    n_late=st.integers(0, 10**10),
)
def test_what_is_allowed_is_never_negative_nor_more_than_the_segment(
    first: int, length: int, n_free: int, n_late: int
) -> None:
    """At any position, after any number of late samples."""
    assert 0 <= _allowed(first, first + length, n_free=n_free, n_late=n_late) <= length


def test_what_was_not_used_may_be_used_later() -> None:
    """One in a hundred of all samples read, not of each batch."""
    assert _allowed(128, 160, n_free=128) == 0
    assert _allowed(1096, 1128, n_free=128) == 10
    assert _allowed(1096, 1128, n_free=128, n_late=8) == 2
