"""The order that is evaluated lazily is the order by definition, written out here with integers and whole sorts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.order import Catalog, EpochOrder, OrderSpec

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_DEAL, _RUN_ORDER, _SHUFFLE, _BIJECTION, _SHARD_ROWS, _SAMPLE, _SAMPLED_ROWS = 1, 2, 3, 4, 8, 10, 11
_STREAM, _UNIT_ORDER = 12, 13
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


def spread_of(n_canonical_nodes: int) -> list[int]:
    n_bits = max(1, (n_canonical_nodes - 1).bit_length())
    reversed_numbers = [int(f"{number:0{n_bits}b}"[::-1], 2) for number in range(n_canonical_nodes)]
    return [sorted(reversed_numbers).index(number) for number in reversed_numbers]


@dataclass(frozen=True)
class Rows:
    """A run: the rows of a shard, in the order of the places that stand for them."""

    shard: int
    stream: int
    pass_number: int
    rows: tuple[int, ...]


def permuted(n: int, number: int, turn: Callable[[int, int], int]) -> int:
    half = max(1, ((max(2, n) - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = number >> half, number & mask
        for round_number in range(6):
            left, right = right, left ^ (turn(round_number, right) & mask)
        number = (left << half) | right
        if number < n:
            return number


def permuted_by_words(n: int, number: int, key: int) -> int:
    return permuted(n, number, lambda turn, right: bits(key, right | (turn << 32)))


def taken(sizes: list[int], wanted: int, spec: OrderSpec, key: int, first_shard: int) -> list[int]:
    """Return how many rows each shard of a stream gives to a partial pass: systematic sampling of picks."""
    order = sorted((shard for shard in range(len(sizes)) if sizes[shard]), key=lambda s: bits(key, first_shard + s))
    g = spec.sampling_granularity
    picks = [shard for shard in order for _ in range(-(-sizes[shard] // g))]
    k, phase = -(-wanted * len(picks) // sum(sizes)), derive(key, 1) % len(picks)
    rows = [0] * len(sizes)
    for number, shard in enumerate(picks):
        if ((number + 1) * k + phase) // len(picks) > (number * k + phase) // len(picks):
            rows[shard] = min(rows[shard] + g, sizes[shard])
    while sum(rows) != wanted:
        for shard in order:
            missing = wanted - sum(rows)
            room = min(g, sizes[shard] - rows[shard] if missing > 0 else rows[shard], abs(missing))
            rows[shard] += room if missing > 0 else -room
    return rows


def subset(size: int, n_rows: int, g: int, key: int) -> list[int]:
    """Return rows of a shard: segments of g neighbours on a ring with a keyed start, in keyed order, the rest last."""
    start = (bits(key, 6 << 32) >> 32) * size >> 32 if g > 1 else 0
    n_whole = size // g
    segments = [permuted_by_words(n_whole, t, key) for t in range(n_whole)]
    laid = [s * g + offset for s in segments for offset in range(g)] + list(range(n_whole * g, size))
    return [(start + place) % size for place in laid][:n_rows]


def dealt_runs(spec: OrderSpec, seed: int, shards: list[int], case: Case) -> list[Rows]:
    runs = []
    sampling_epoch = -1 if spec.sampling_method == "fixed" else case.epoch
    for stream, (first, sizes) in enumerate(zip(case.first_shards(), case.streams)):
        n_passes, rest = divmod(case.draws[stream], sum(sizes) or 1)
        sampled = [0] * len(sizes)
        if rest:
            key = derive(spec.seed, sampling_epoch & _WORD, stream, _SAMPLE)
            sampled = taken(list(sizes), rest, spec, key, first)
        for shard, size in enumerate(sizes, first):
            if shard not in shards or not size:
                continue
            runs += [Rows(shard, stream, number, tuple(range(size))) for number in range(n_passes)]
            n_rows = sampled[shard - first]
            if n_rows:
                row_key = bits(bits(derive(spec.seed, sampling_epoch & _WORD, _SAMPLED_ROWS), shard), 0)
                rows = subset(size, n_rows, spec.sampling_granularity, row_key)
                runs.append(Rows(shard, stream, n_passes, tuple(rows if spec.shuffle else sorted(rows))))
    if not spec.shuffle:
        return sorted(runs, key=lambda run: (run.stream, run.pass_number))
    if spec.shuffle_algo == "py2s":
        permute_key = derive(seed, case.epoch, _SHARD_ROWS)
        runs = [replace(run, rows=permuted_rows(run, permute_key)) for run in runs]
    return sorted(runs, key=lambda run: (bits(derive(seed, _DEAL), run.shard), run.shard))


def permuted_rows(run: Rows, permute_key: int) -> tuple[int, ...]:
    n, key = len(run.rows), bits(bits(permute_key, run.shard), run.pass_number)
    return tuple(run.rows[permuted_by_words(n, place, key)] for place in range(n))


def runs_between(runs: list[Rows], start: int, stop: int) -> list[Rows]:
    cut, offset = [], 0
    for run in runs:
        rows = run.rows[max(0, start - offset) : max(0, stop - offset)]
        offset += len(run.rows)
        if rows:
            cut.append(replace(run, rows=rows))
    return cut


def ring_order(runs: list[Rows], block: int, key: int) -> list[tuple[int, int]]:
    """Return (shard, row) in the order of one canonical node, by one sort by (key, place)."""
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


def block_order(runs: list[Rows], block: int, algo: str, key: int) -> list[tuple[int, int]]:
    """Return (shard, row) in the order of one canonical node: block by block, each sorted by (32 bits, place)."""
    places = [(run.shard, row) for run in runs for row in run.rows]
    block = min(block, 1 << 33)
    width = block // 4 if algo == "py1br" else 0
    stagger = derive(key, 2) % (block - width) if algo == "py1br" else 0

    def jitter(number: int) -> int:
        return (bits(derive(key, 1), number) >> 32) * width >> 32

    order, start, number = [], 0, 1
    while start < len(places):
        stop = min(number * block + jitter(number) - jitter(0) - stagger, len(places))
        order += sorted(range(start, stop), key=lambda place: (bits(key, place) >> 32, place))
        assert start == 0 or stop == len(places) or 0.75 * block <= stop - start < 1.25 * block or algo == "py1b"
        start, number = stop, number + 1
    return [places[place] for place in order]


@dataclass(frozen=True)
class Case:
    """Data, draws and epoch; `streams`: shard sizes of each stream."""

    streams: tuple[tuple[int, ...], ...]
    draws: tuple[int, ...]
    epoch: int

    def catalog(self) -> Catalog:
        sizes = np.array([size for stream in self.streams for size in stream], np.int64)
        return Catalog(sizes, np.array([len(stream) for stream in self.streams], np.int64))

    def first_shards(self) -> list[int]:
        return [sum(len(stream) for stream in self.streams[:number]) for number in range(len(self.streams))]


def order_of_shards(
    spec: OrderSpec, seed: int, n_canonical_nodes: int, block: int, shards: list[int], case: Case
) -> list[int]:
    """Return the sample ids of one sub-order: of these shards, with a seed of its own."""
    first = case.catalog().first_sample.tolist()
    runs = dealt_runs(spec, seed, shards, case)
    dealt = [(run.shard, row) for run in runs for row in run.rows]
    n = len(dealt)
    if spec.shuffle and spec.shuffle_algo == "naive":
        key = derive(seed, case.epoch, _BIJECTION)
        places = [permuted(n, q, lambda turn, right: bits(derive(key, turn), right)) for q in range(n)]
        return [first[dealt[place][0]] + dealt[place][1] for place in places]
    canonical_nodes: list[list[tuple[int, int]]] = []
    spread, start = spread_of(n_canonical_nodes), 0
    for canonical_node in range(n_canonical_nodes):
        stop = start - (spread.index(canonical_node) - n) // n_canonical_nodes
        mine = runs_between(runs, start, stop)
        if spec.shuffle:
            run_key = derive(seed, case.epoch, canonical_node, _RUN_ORDER)
            mine.sort(key=lambda run: bits(bits(run_key, run.shard), run.pass_number))
            key = derive(seed, case.epoch, canonical_node, _SHUFFLE)
            if spec.shuffle_algo in ("py1b", "py1br"):
                canonical_nodes.append(block_order(mine, block, spec.shuffle_algo, key))
            else:
                canonical_nodes.append(ring_order(mine, block if spec.shuffle_algo == "py1e" else 0, key))
        else:
            canonical_nodes.append(dealt[start:stop])
        start = stop
    return [
        first[shard] + row
        for shard, row in (canonical_nodes[spread[q % n_canonical_nodes]][q // n_canonical_nodes] for q in range(n))
    ]


SHARDS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), max_size=14)
SPECS = st.builds(
    OrderSpec,
    seed=st.integers(0, 2**63 - 1),
    shuffle=st.sampled_from([True, True, True, False]),
    shuffle_algo=st.sampled_from(["py1e", "py1e", "py1s", "py2s", "py1b", "py1br", "naive"]),
    num_canonical_nodes=st.sampled_from([None, 1, 2, 3, 4, 5, 8, 16, 64]),
    shuffle_block_size=st.sampled_from([None, 1, 2, 7, 30, 100, 10_000, 2**61]),
    sampling_method=st.sampled_from(["balanced", "fixed"]),
    sampling_granularity=st.sampled_from([1, 1, 2, 5, 30, 2**61]),
)


@st.composite
def cases(draw: st.DrawFn, n_streams: int) -> Case:
    streams = [draw(SHARDS) for _ in range(n_streams)]
    draws = [draw(st.one_of(st.just(sum(s)), st.integers(0, 3 * sum(s)))) for s in streams]
    return Case(tuple(map(tuple, streams)), tuple(draws), draw(st.integers(0, 3)))


@settings(max_examples=200)
@given(case=st.integers(1, 4).flatmap(cases), spec=SPECS)
def test_the_order_is_the_one_that_is_defined(case: Case, spec: OrderSpec) -> None:
    """One sort of each whole canonical node gives the same sequence as windows, with one stream or several."""
    order = EpochOrder(spec, case.catalog(), case.epoch, np.array(case.draws))
    shards = list(range(sum(map(len, case.streams))))
    canonical_nodes, block = order.n_canonical_nodes, order.shuffle_block_size
    assert order.take(0, order.n_samples).tolist() == order_of_shards(
        spec, spec.seed, canonical_nodes, block, shards, case
    )


def merged_evenly(lengths: list[int]) -> list[int]:
    """Return which sequence comes at each position of the even merge: join the two lightest, again and again."""
    piles = [(n, number, [number] * n) for number, n in enumerate(lengths) if n]
    number = len(lengths)
    while len(piles) > 1:
        piles.sort(key=lambda pile: pile[:2])
        (n_light, _, light), (n_heavy, _, heavy) = piles[:2]
        n, joined, taken_left = n_light + n_heavy, [], 0
        for q in range(n):
            is_left = (2 * (q + 1) * n_heavy + n) // (2 * n) > taken_left
            joined.append(heavy[taken_left] if is_left else light[q - taken_left])
            taken_left += is_left
        piles = [*piles[2:], (n, number, joined)]
        number += 1
    return piles[0][2] if piles else []


def units_of(order: list[int], n_canonical_nodes: int, unit: int) -> list[list[int]]:
    """Return the units that lie wholly in canonical nodes. The canonical nodes take turns."""
    canonical_nodes = [order[residue::n_canonical_nodes] for residue in range(n_canonical_nodes)]
    whole = [
        [canonical_node[first : first + unit] for first in range(0, len(canonical_node) - unit + 1, unit)]
        for canonical_node in canonical_nodes
    ]
    return [
        canonical_node[turn]
        for turn in range(len(whole[0]) if whole else 0)
        for canonical_node in whole
        if turn < len(canonical_node)
    ]


def order_of_streams(spec: OrderSpec, n_canonical_nodes: int, block: int, case: Case, unit: int) -> list[int]:
    """Return the sample ids of an epoch in which every stream has a sub-order of its own."""
    method, total = spec.batching_method, max(1, sum(case.draws))
    pieces: list[list[list[int]]] = []
    for stream, (first, n) in enumerate(zip(case.first_shards(), case.draws)):
        canonical_nodes = n_canonical_nodes
        if method == "device_per_stream":
            canonical_nodes = 1 << (max(1, min(n_canonical_nodes, n // (64 * unit))).bit_length() - 1)
        shards = list(range(first, first + len(case.streams[stream])))
        seed = derive(spec.seed, stream, _STREAM)
        order = order_of_shards(spec, seed, canonical_nodes, max(1, block * n // total), shards, case)
        pieces.append(units_of(order, canonical_nodes if method == "device_per_stream" else 1, unit))
    turns = merged_evenly([len(units) for units in pieces])
    if method != "stratified" and spec.shuffle:
        key, blocks = derive(spec.seed, case.epoch, _UNIT_ORDER), []
        for first in range(0, len(turns), 1 << 12):
            by_stream = sorted(turns[first : first + (1 << 12)])
            blocks += [by_stream[i] for i in sorted(range(len(by_stream)), key=lambda i: bits(key, first + i) >> 12)]
        turns = blocks
    upcoming = [iter(units) for units in pieces]
    return [sample for stream in turns for sample in next(upcoming[stream])]


@settings(max_examples=150)
@given(
    case=st.integers(1, 4).flatmap(cases),
    spec=SPECS,
    method=st.sampled_from(["stratified", "per_stream", "device_per_stream"]),
    unit=st.sampled_from([1, 2, 3, 10]),
)
def test_the_order_of_separate_streams_is_the_one_that_is_defined(
    case: Case, spec: OrderSpec, method: str, unit: int
) -> None:
    """The sub-orders of the streams, taken in turns sample by sample or unit by unit."""
    spec = replace(spec, batching_method=method)
    unit = 1 if method == "stratified" else unit
    order = EpochOrder(spec, case.catalog(), case.epoch, np.array(case.draws), unit)
    expected = order_of_streams(spec, order.n_canonical_nodes, order.shuffle_block_size, case, unit)
    assert order.take(0, order.n_samples).tolist() == expected


def test_units_take_turns_in_blocks() -> None:
    """10,000 units of unequal streams are the same, whether entered anywhere or read from the start."""
    case = Case(((4000, 3000), (1500,), (2500,)), (7000, 1200, 4700), 1)
    spec = OrderSpec(seed=5, shuffle=True, shuffle_algo="py1s", batching_method="per_stream")
    order = EpochOrder(spec, case.catalog(), 1, np.array(case.draws), 1)
    expected = order_of_streams(spec, order.n_canonical_nodes, order.shuffle_block_size, case, 1)
    assert order.take(0, order.n_samples).tolist() == expected
    for position in (4095, 4096, 8192, 12_899):
        assert order.take(position, position + 1).tolist() == expected[position : position + 1]


def test_long_runs_count_as_consecutive_runs() -> None:
    """A shard of more than 2**20 rows is laid out in consecutive pieces."""
    size = _MOST_ROWS + 5
    spec = OrderSpec(seed=3, shuffle=True, num_canonical_nodes=1, shuffle_block_size=10)
    order = EpochOrder(spec, Catalog(np.array([size]), np.array([1])), 0)
    ids = order.take(0, size)
    assert np.array_equal(np.sort(ids), np.arange(size))
    assert int(np.flatnonzero(ids >= _MOST_ROWS).min()) >= _MOST_ROWS - 20 or ids[:20].max() >= _MOST_ROWS
