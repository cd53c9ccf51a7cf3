"""The pieces of the order by themselves: hash, grid, merge and ring, and the laws that they keep."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from streaming.errors import OptionError
from streaming.order import Catalog, EpochOrder, OrderSpec
from streaming.order.batching.even_merge import EvenMerge
from streaming.order.bits import bits, bits_between, derive_key, keyed_order
from streaming.order.grid import CanonicalNodeGrid, spread
from streaming.order.shuffle.ring import Load, Ring, Samples, step
from streaming.order.sub_orders.runs import sum_of_products, sum_of_squares


def test_the_hash_is_splitmix64() -> None:
    """Known values of the public algorithm: its state after i + 1 steps from seed 0 is (i + 1) × gamma."""
    assert bits_between(0, 1, 4).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert bits(5, np.array([9, 2])).tolist() == bits_between(5, 0, 10)[[9, 2]].tolist()


def test_keys_depend_on_every_part_and_their_order() -> None:
    """So no two uses of a seed share bits."""
    keys = {derive_key(*parts) for parts in ((), (0,), (0, 0), (1, 2), (2, 1), (1, 2, 0), (-1,))}
    assert len(keys) == 7


@pytest.mark.parametrize("n_canonical_nodes", [1, 2, 3, 5, 8, 12, 64, 100])
def test_spread_is_a_permutation_and_even(n_canonical_nodes: int) -> None:
    """Any segment of positions lies evenly over the two halves of the canonical nodes."""
    canonical_nodes = spread(n_canonical_nodes)
    assert sorted(canonical_nodes.tolist()) == list(range(n_canonical_nodes))
    low = np.cumsum(np.tile(canonical_nodes, 2) < n_canonical_nodes / 2) - np.arange(1, 2 * n_canonical_nodes + 1) * (
        -(-n_canonical_nodes // 2) / n_canonical_nodes
    )
    assert low.max() - low.min() <= 3


def test_canonical_nodes_hold_what_their_residues_have() -> None:
    """The canonical node of residue i has ceil((N - i) / C) positions, and `first_ranks` counts them."""
    grid = CanonicalNodeGrid(23, 5)
    canonical_nodes, ranks = grid.locate(np.arange(23))
    assert np.bincount(canonical_nodes, minlength=5).tolist() == np.diff(grid.starts).tolist()
    for position in range(24):
        seen = np.bincount(canonical_nodes[:position], minlength=5)
        assert grid.first_ranks(np.arange(5), position).tolist() == seen.tolist()
    assert all(np.array_equal(ranks[canonical_nodes == c], np.arange((canonical_nodes == c).sum())) for c in range(5))


@pytest.mark.parametrize("lengths", [[], [0], [5], [5, 5], [1, 0, 100], [3, 10, 1000], [7, 7, 7, 1], [1] * 9])
def test_merges_keep_sequences_and_shares(lengths: list[int]) -> None:
    """Each sequence comes whole and in order; every prefix holds its share to within 2; counts agree with find."""
    n = sum(lengths)
    merge = EvenMerge(lengths)
    sequences, indices = merge.find(np.arange(n))
    for number, length in enumerate(lengths):
        assert indices[sequences == number].tolist() == list(range(length))
        prefix = np.concatenate([[0], np.cumsum(sequences == number)])
        assert np.abs(prefix - np.arange(n + 1) * (length / max(1, n))).max() <= 2
        assert [merge.counts(q)[number] for q in range(n + 1)] == prefix.tolist()
        assert merge.all_counts(np.arange(n + 1))[:, number].tolist() == prefix.tolist()
        assert merge.positions(number, np.arange(length)).tolist() == np.flatnonzero(sequences == number).tolist()


def test_merges_are_exact_at_their_limit() -> None:
    """Just below 2**42 samples, where products take 84 bits."""
    lengths = [2**41 - 12345, 2**40 + 77, 2**40 - 99999, 3]
    merge = EvenMerge(lengths)
    positions = np.array([0, 1, 2**20 + 1, 2**41 + 5, sum(lengths) - 1])
    sequences, indices = merge.find(positions)
    for position, sequence, index in zip(positions.tolist(), sequences.tolist(), indices.tolist()):
        assert merge.counts(position)[sequence] == index
        assert merge.counts(position + 1)[sequence] == index + 1
        assert merge.positions(sequence, np.array([index])).tolist() == [position]
    with pytest.raises(OptionError, match=r"2\*\*42"):
        EvenMerge([2**42])


def test_products_are_summed_exactly() -> None:
    """Also where a sum exceeds 64 bits."""
    values = [2**62 + 1, 3, 2**31, 0]
    others = [5, 0, 2**61 + 7, 1]
    assert sum_of_squares(np.array(values)) == sum(value * value for value in values)
    assert sum_of_products(np.array(values), np.array(others)) == sum(a * b for a, b in zip(values, others))


@pytest.mark.parametrize("words", [[], [7], [3, 9, 1], [2**63, 5, 2**63, 0, 5], [4] * 100])
def test_keyed_orders_are_stable(words: list[int]) -> None:
    """Equal words keep their order."""
    assert keyed_order(np.array(words, np.uint64)).tolist() == sorted(range(len(words)), key=words.__getitem__)


def ring_by_one_sort(n_rows: list[int], block: int, key: int) -> list[int]:
    """Return the places of a ring in order, by one sort of all (key, ring place)."""
    n = sum(n_rows)
    z = np.repeat(n_rows, n_rows)
    o = np.repeat(np.cumsum(n_rows) - n_rows, n_rows)
    span = np.minimum(z + block, n)
    u = (bits_between(key, 0, n) >> np.uint64(32)).astype(np.int64)
    keys = ((2 * o + z - span) << 19) + ((u.view(np.uint64) * span.astype(np.uint64)) >> np.uint64(12)).astype(np.int64)
    places = np.arange(n)
    turns = (keys >= n << 20).astype(np.int64) - (keys < 0)
    order: list[int] = places[np.lexsort((places - turns * n, keys - turns * (n << 20)))].tolist()
    return order


@pytest.mark.parametrize(
    ("n_rows", "block"),
    [
        ([500] * 7, 10**9),
        ([1] * 20_000, 3_000),
        ([1000] * 100, 5_000),
        ([1, 50_000, 1, 1, 20_000, 3], 30_000),
        ([1, 50_000, 1, 1, 20_000, 3], 0),
    ],
)
def test_windows_of_a_ring_equal_one_sort(n_rows: list[int], block: int) -> None:
    """Whether walked from the start or entered anywhere."""
    ring = Ring(np.array(n_rows), block, key=99)
    whole = np.array(ring_by_one_sort(n_rows, block, key=99))
    n = len(whole)
    assert np.array_equal(np.concatenate(list(ring.walk(0))), whole)
    for rank in (1, n // 3, n // 2 + 1, n - 2, n - 1):
        chunk = next(ring.walk(rank))
        assert np.array_equal(chunk, whole[rank : rank + len(chunk)])


@pytest.mark.parametrize("widest_place", [20, 2**20, 2**40])
@pytest.mark.parametrize("n_unseen", [0, 40, 150])
def test_a_step_gives_out_what_is_below_the_limit(widest_place: int, n_unseen: int) -> None:
    """In order of (key, place), with one word per sample or two. Others wait; samples that are skipped are counted."""
    limit, top = 1 << 39, 1 << 40
    for low_bits in (0, 33):  # few distinct keys, or almost only distinct ones
        counters = np.arange(400)
        keys = (bits(1, counters) % np.uint64(top)).astype(np.int64) >> low_bits << low_bits
        places = (bits(2, counters) % np.uint64(widest_place)).astype(np.int64)
        waiting, comes = Samples(keys[:150], places[:150]), Samples(keys[150:], places[150:])
        done = step(waiting, Load([comes], 300, (0, top), (0, widest_place)), limit, n_unseen)
        order = np.lexsort((places, keys))
        below = order[keys[order] < limit]
        assert done.places.tolist() == places[below[n_unseen:]].tolist()
        assert done.n_unseen == max(0, n_unseen - len(below))
        above = order[keys[order] >= limit]
        assert sorted(zip(done.waiting.keys.tolist(), done.waiting.places.tolist())) == list(
            zip(keys[above].tolist(), places[above].tolist())
        )


@pytest.mark.parametrize("block", [0, 40, 700, 10**6])
def test_uses_of_a_ring_hold_all_that_is_read(block: int) -> None:
    """No run is read at or after the end that its uses give."""
    n_rows = [30, 1, 200, 5, 5, 90, 60, 1, 300]
    ring = Ring(np.array(n_rows), block, key=5)
    run_of_place = np.repeat(np.arange(len(n_rows)), n_rows)
    runs = run_of_place[np.concatenate(list(ring.walk(0)))]
    uses = ring.uses()
    for rank in range(len(runs)):
        still = set(uses.run[uses.end > rank].tolist())
        assert set(runs[rank:].tolist()) <= still


def test_an_order_may_be_shared_between_threads() -> None:
    """Many threads that evaluate one fresh order at the same time read what a single thread reads."""
    catalog = Catalog(np.full(200, 50), np.array([200]))
    spec = OrderSpec(shuffle=True, num_canonical_nodes=16, shuffle_block_size=300)
    whole = EpochOrder(spec, catalog, 0).take(0, 10_000)
    shared = EpochOrder(spec, catalog, 0)
    wrong: list[int] = []

    def read(start: int) -> None:
        for first in range(start, 10_000, 1000):
            wrong.extend(np.flatnonzero(shared.take(first, first + 100) != whole[first : first + 100]))

    threads = [threading.Thread(target=read, args=(100 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
