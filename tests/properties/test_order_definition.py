"""The lazily evaluated order is the one that the design defines, written out here with integers and whole sorts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.order import Catalog, EpochOrder, OrderSpec

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_DEAL, _RUN_ORDER, _SHUFFLE, _BIJECTION = 1, 2, 3, 4
_MOST_ROWS = 1 << 20


def mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def derive(*parts: int) -> int:
    key = 0
    for part in parts:
        key = mix(((key ^ part) * _GAMMA + 0x632BE59BD9B4E019) & _WORD)
    return key


def bits(key: int, counter: int) -> int:
    return mix((key + counter * _GAMMA) & _WORD)


def lane_of_residue(n_lanes: int) -> list[int]:
    n_bits = max(1, (n_lanes - 1).bit_length())
    reversed_numbers = [int(f"{number:0{n_bits}b}"[::-1], 2) for number in range(n_lanes)]
    return [sorted(reversed_numbers).index(number) for number in reversed_numbers]


@dataclass(frozen=True)
class Rows:
    shard: int
    pass_number: int
    rows: tuple[int, ...]


def dealt_runs(spec: OrderSpec, sizes: list[int], passes: list[int]) -> list[Rows]:
    runs = [
        Rows(shard, number, tuple(range(first, min(first + _MOST_ROWS, size))))
        for shard, size in enumerate(sizes)
        for number in range(passes[shard])
        for first in range(0, size, _MOST_ROWS)
    ]
    if spec.shuffle:
        return sorted(runs, key=lambda run: (bits(derive(spec.seed, _DEAL), run.shard), run.shard))
    return sorted(runs, key=lambda run: run.pass_number)


def lane_runs(runs: list[Rows], start: int, stop: int) -> list[Rows]:
    cut, offset = [], 0
    for run in runs:
        rows = run.rows[max(0, start - offset) : max(0, stop - offset)]
        offset += len(run.rows)
        if rows:
            cut.append(Rows(run.shard, run.pass_number, rows))
    return cut


def ring_order(runs: list[Rows], block: int, key: int) -> list[tuple[int, int]]:
    """(shard, row) in the order of one canonical node: one sort by (key, place)."""
    n = sum(len(run.rows) for run in runs)
    top, place, entries = n << 20, 0, []
    for run in runs:
        o, z = place, len(run.rows)
        span = min(z + block, n)
        for row in run.rows:
            u = bits(key, place) >> 32
            sort_key = ((2 * o + z - span) << 19) + ((u * span) >> 12)
            turns = -1 if sort_key < 0 else 1 if sort_key >= top else 0
            entries.append((sort_key - turns * top, place - turns * n, (run.shard, row)))
            place += 1
    return [entry[2] for entry in sorted(entries)]


def permuted(n: int, key: int, number: int) -> int:
    half = max(1, ((max(2, n) - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = number >> half, number & mask
        for turn in range(6):
            left, right = right, left ^ (bits(derive(key, turn), right) & mask)
        number = (left << half) | right
        if number < n:
            return number


def defined_order(
    spec: OrderSpec, n_lanes: int, block: int, sizes: list[int], passes: list[int], epoch: int
) -> list[int]:
    first = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    runs = dealt_runs(spec, sizes, passes)
    dealt = [(run.shard, row) for run in runs for row in run.rows]
    n = len(dealt)
    if spec.shuffle and spec.shuffle_algo == "naive":
        key = derive(spec.seed, epoch, _BIJECTION)
        return [first[shard] + row for shard, row in (dealt[permuted(n, key, q)] for q in range(n))]
    lanes: list[list[tuple[int, int]]] = []
    spread, start = lane_of_residue(n_lanes), 0
    for lane in range(n_lanes):
        stop = start - (spread.index(lane) - n) // n_lanes
        mine = lane_runs(runs, start, stop)
        if spec.shuffle:
            run_key = derive(spec.seed, epoch, lane, _RUN_ORDER)
            mine.sort(key=lambda run: bits(bits(run_key, run.shard), run.pass_number))
            width = 0 if spec.shuffle_algo == "py1s" else block
            lanes.append(ring_order(mine, width, derive(spec.seed, epoch, lane, _SHUFFLE)))
        else:
            lanes.append(dealt[start:stop])
        start = stop
    return [first[shard] + row for shard, row in (lanes[spread[q % n_lanes]][q // n_lanes] for q in range(n))]


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), max_size=14),
    n_passes=st.integers(0, 3),
    epoch=st.integers(0, 3),
    spec=st.builds(
        OrderSpec,
        seed=st.integers(0, 2**63 - 1),
        shuffle=st.sampled_from([True, True, True, False]),
        shuffle_algo=st.sampled_from(["py1e", "py1e", "py1s", "naive"]),
        num_canonical_nodes=st.sampled_from([None, 1, 2, 3, 4, 5, 8, 16, 64]),
        shuffle_block_size=st.sampled_from([None, 1, 2, 7, 30, 100, 10_000]),
    ),
)
def test_the_order_is_the_one_that_is_defined(sizes: list[int], n_passes: int, epoch: int, spec: OrderSpec) -> None:
    """One whole sort for each canonical node gives the sequence that windows give."""
    catalog = Catalog(np.array(sizes, np.int64), np.array([len(sizes)]))
    draws = np.array([sum(sizes) * n_passes])
    order = EpochOrder(spec, catalog, epoch, draws)
    passes = [n_passes] * len(sizes)
    expected = defined_order(spec, order.n_canonical_nodes, order.shuffle_block_size, sizes, passes, epoch)
    assert order.take(0, order.n_samples).tolist() == expected


def test_long_runs_count_as_consecutive_runs() -> None:
    """A shard of more than 2**20 rows is laid in pieces that follow each other."""
    size = _MOST_ROWS + 5
    spec = OrderSpec(seed=3, shuffle=True, num_canonical_nodes=1, shuffle_block_size=10)
    order = EpochOrder(spec, Catalog(np.array([size]), np.array([1])), 0)
    ids = order.take(0, size)
    assert np.array_equal(np.sort(ids), np.arange(size))
    assert int(np.flatnonzero(ids >= _MOST_ROWS).min()) >= _MOST_ROWS - 20 or ids[:20].max() >= _MOST_ROWS
