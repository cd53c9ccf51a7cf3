"""Laws of all the fetcher's decisions together, over whole epochs in virtual time."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cache_world import Machine, Setup, fetches_of_best, fetches_of_lru, shuffled


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Readers with shuffled orders of their own over the same shards, and room for at least two of the largest."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    sizes = [rng.choice([10, 50, 100]) for _ in range(draw(st.integers(1, 12)))]
    n_readers = draw(st.integers(1, 4))
    orders = [
        shuffled(len(sizes), draw(st.integers(1, 4)), draw(st.sampled_from([0.5, 3, 100])), rng)
        for _ in range(n_readers)
    ]
    by_range = draw(st.booleans())
    setup = Setup(
        sizes,
        draw(st.none() | st.integers(2 * max(sizes), sum(sizes) + 100)),
        latency_s=draw(st.sampled_from([0.0, 0.05, 1.0])),
        total_bytes_per_s=draw(st.sampled_from([1000.0, 1e9])),
        n_transfers=draw(st.sampled_from([1, 3, 16])),
        by_range=by_range,
        # A reader that cannot read by range leases only the shard it needs: leases that fill the cache would stop all.
        n_planned=draw(st.sampled_from([0, 2, 5])) if by_range else draw(st.sampled_from([0, 1])),
        n_announced=draw(st.sampled_from([0, 3, 100])),
        renew_after=draw(st.sampled_from([1, 4, 100])),
    )
    return Machine(setup, orders)


@settings(max_examples=1000)
@given(machines())
def test_the_limit_holds_and_every_reader_finishes(machine: Machine) -> None:
    """Whatever the sizes, limits, lists, leases and speeds; and nothing is kept of jobs that have ended."""
    outcome = machine.run()
    assert outcome.n_finished == len(machine.readers)
    limit = machine.setup.limit_bytes
    assert limit is None or outcome.most_bytes <= limit
    assert outcome.n_ranges == 0 or machine.setup.by_range
    while machine.ledger.n_moving:
        machine.step()
    assert machine.space.n_bytes == (0 if limit is None else sum(machine.disk.values()))
    if limit is None or limit >= sum(machine.setup.sizes):
        assert set(outcome.n_fetched.values()) <= {1}
    machine.end()
    assert (machine.ledger.n_known, machine.ledger.n_queued, machine.space.n_bytes) == (0, 0, 0)


@pytest.mark.parametrize("n_readers", [1, 4])
@pytest.mark.parametrize("n_mixed", [10, 40])
def test_each_shard_is_fetched_once_if_a_little_more_than_the_working_set_fits(n_mixed: int, n_readers: int) -> None:
    """A quarter more is enough; the readers of a machine share an epoch and advance at about the same speed."""
    rng = random.Random(n_mixed)
    order = shuffled(200, 10, n_mixed, rng)
    n_fitting = math.ceil(1.25 * (n_mixed + 2))
    setup = Setup([100] * 200, n_fitting * 100, sample_s=0.02 * n_readers, n_announced=200, renew_after=4)
    outcome = Machine(setup, [order[i::n_readers] for i in range(n_readers)]).run()
    assert outcome.n_fetched == dict.fromkeys(range(200), 1)
    assert outcome.n_stalls <= 0.02 * len(order)


@pytest.mark.parametrize("n_readers", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_cache_of_half_the_working_set_beats_lru_by_far(seed: int, n_readers: int) -> None:
    """At most 0.7 of the fetches of LRU eviction, and at most 1.35 times the fewest possible."""
    order = shuffled(100, 10, 40, random.Random(seed))
    setup = Setup([100] * 100, 20 * 100, sample_s=0.02 * n_readers, n_announced=100, renew_after=2)
    outcome = Machine(setup, [order[i::n_readers] for i in range(n_readers)]).run()
    n_fetched = outcome.n_fetched.total() + outcome.n_ranges
    assert n_fetched <= 0.7 * fetches_of_lru(order, 20)
    assert n_fetched <= 1.35 * fetches_of_best(order, 20)
    assert outcome.n_stalls <= 0.05 * len(order)


def test_a_cache_keeps_a_share_of_an_epoch_for_the_next() -> None:
    """One reader repeats the same order with room for half of it: LRU would fetch every shard every time."""
    order = list(range(60)) * 4
    setup = Setup([100] * 60, 30 * 100, sample_s=1.0, n_announced=109, renew_after=1)
    outcome = Machine(setup, [order]).run()
    assert fetches_of_lru(order, 30) == 240
    assert outcome.n_fetched.total() <= 1.35 * fetches_of_best(order, 30)


def test_random_reads_of_one_reader_do_not_stop_the_others() -> None:
    """Without lists and leases, four readers of a cache of two shards all finish without a range."""
    rng = random.Random(7)
    orders = [[rng.randrange(10) for _ in range(50)] for _ in range(4)]
    setup = Setup([100] * 10, 200, by_range=False, n_announced=0, n_planned=0)
    outcome = Machine(setup, orders).run()
    assert (outcome.n_finished, outcome.n_ranges, outcome.most_bytes) == (4, 0, 200)


@pytest.mark.parametrize(("n_fitting", "n_mixed"), [(None, 0), (None, 20), (4, 0), (60, 0), (60, 20)])
def test_a_store_that_is_fast_enough_costs_no_waiting(n_fitting: int | None, n_mixed: int) -> None:
    """Shards of 10 MB from 200 ms away at 200 MB/s, consumed at 50 MB/s: less than 2 % of the time after the start."""
    n_shards, n_samples, megabytes = 200, 10, 1e6
    order = shuffled(n_shards, n_samples, n_mixed, random.Random(3))
    setup = Setup(
        [int(10 * megabytes)] * n_shards,
        None if n_fitting is None else n_fitting * int(10 * megabytes),
        latency_s=0.2,
        bytes_per_s=50 * megabytes,
        total_bytes_per_s=200 * megabytes,
        sample_s=0.02,
        n_announced=100,
        renew_after=n_samples,
    )
    outcome = Machine(setup, [order]).run()
    reading_s = len(order) * setup.sample_s
    start_s = 0.2 + 10 / 50 + 16 * 10 / 200  # the first shards share the link
    assert outcome.took_s - start_s < 1.02 * reading_s
    assert outcome.n_ranges == 0
