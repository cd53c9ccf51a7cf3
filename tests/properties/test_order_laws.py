"""The laws of the order, over generated datasets, settings, worlds and histories. Law 6 is in test_order_nodes."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology, WorkerReader, first_uses

laws = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])

SHARD_SIZES = st.one_of(
    st.lists(st.integers(0, 40), max_size=12),
    st.lists(st.just(1), min_size=1, max_size=20),
    st.lists(st.integers(0, 2), max_size=12),
    st.lists(st.sampled_from([0, 1, 3, 300]), max_size=5),
)


ALGORITHMS = ("py1e", "py1e", "py1s", "py2s", "py1b", "py1br", "naive")
METHODS = ("random", "random", "stratified", "per_stream", "device_per_stream")


ALONE = Topology(1, 1)


@dataclass(frozen=True)
class OrderCase:
    """Settings and data, shown by hypothesis as their `repr`. `draws`: samples of each stream in an epoch."""

    spec: OrderSpec
    streams: tuple[tuple[int, ...], ...]
    draws: tuple[int, ...]
    epoch: int

    def order(self, world: Topology = ALONE, batch_size: int = 3) -> EpochOrder:
        """Make the order. It depends on world and batch size only where streams take turns by units."""
        sizes = np.array([size for stream in self.streams for size in stream], np.int64)
        catalog = Catalog(sizes, np.array([len(stream) for stream in self.streams]))
        units = {"per_stream": batch_size * world.n_groups, "device_per_stream": batch_size}
        unit = units.get(self.spec.batching_method)
        return EpochOrder(self.spec, catalog, self.epoch, np.array(self.draws), unit)


@st.composite
def order_cases(
    draw: st.DrawFn, *, algorithms: tuple[str, ...] = ALGORITHMS, methods: tuple[str, ...] = METHODS
) -> OrderCase:
    streams = draw(st.lists(SHARD_SIZES.map(tuple), min_size=1, max_size=6))
    spec = OrderSpec(
        seed=draw(st.integers(0, 2**63 - 1)),
        shuffle=draw(st.sampled_from([True, True, True, False])),
        shuffle_algo=draw(st.sampled_from(algorithms)),
        num_canonical_nodes=draw(st.sampled_from([None, 1, 2, 3, 4, 8, 16, 64])),
        shuffle_block_size=draw(st.sampled_from([None, 1, 3, 10, 50, 400, 10_000])),
        batching_method=draw(st.sampled_from(methods)),
        sampling_method=draw(st.sampled_from(["balanced", "fixed"])),
        sampling_granularity=draw(st.sampled_from([1, 1, 2, 7, 100])),
    )
    fractions = [Fraction(number) for number in ("1", "1", "1", "0", "2", "3", "1/2", "1/7", "5/3")]
    draws = tuple(int(draw(st.sampled_from(fractions)) * sum(stream)) for stream in streams)
    return OrderCase(spec, tuple(streams), draws, draw(st.integers(0, 3)))


WORLDS = [(1, 1, 1), (1, 3, 1), (2, 1, 1), (2, 4, 1), (3, 2, 1), (5, 1, 1), (8, 8, 1), (64, 8, 1), (3, 5, 1)]
REPLICATED = [(1, 2, 2), (2, 4, 2), (2, 2, 4), (2, 6, 4), (8, 8, 8), (4, 1, 2)]


@st.composite
def worlds(draw: st.DrawFn, among: list[tuple[int, int, int]] = WORLDS + REPLICATED) -> Topology:
    n_nodes, ranks, replication = draw(st.sampled_from(among))
    return Topology(n_nodes * ranks, ranks, replication)


REMAINDERS = st.sampled_from(["pad", "drop", "exact"])


def first_ranks(world: Topology) -> range:
    """Return one rank of each group."""
    return range(0, world.n_ranks, world.replication)


def global_batch(plan: EpochPlan, k: int) -> NDArray[np.int64]:
    return np.concatenate([plan.batch_positions(k, rank) for rank in first_ranks(plan.topology)])


def whole_units(start: int, order: EpochOrder) -> int:
    """Return the last position up to `start` at which reading can go on."""
    return start // (order.unit or 1) * (order.unit or 1)


@laws
@given(case=order_cases())
def test_each_sample_appears_as_often_as_it_was_drawn(case: OrderCase) -> None:
    """Law 1: as often as drawn, except for what fills no unit; and evenly over the samples of a stream."""
    order = case.order()
    counts = np.bincount(order.take(0, order.n_samples), minlength=order.catalog.n_samples)
    left_out, first = order.left_out.tolist(), 0
    for n_drawn, n_left, sizes in zip(case.draws, left_out, case.streams):
        n = sum(sizes)
        mine, first = counts[first : first + n], first + n
        assert mine.sum() == n_drawn - n_left
        assert n_left >= 0
        assert not n or mine.max() <= -(-n_drawn // n)
        assert not n or n_left or mine.min() >= n_drawn // n
        if order.unit is None:
            assert n_left == 0
        else:  # less than a unit in every canonical node
            assert n_left < order.unit * max(sub_order.n_canonical_nodes for sub_order in order.sub_orders)
            assert case.spec.batching_method == "device_per_stream" or n_left < order.unit


@laws
@given(case=order_cases(), data=st.data())
def test_any_cuts_and_any_access_give_the_whole(case: OrderCase, data: st.DataObject) -> None:
    """Law 2: forwards, backwards, in pieces or at random, with a reader or without."""
    order = case.order()
    n = order.n_samples
    whole = order.take(0, n)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    pieces = list(zip([0, *cuts], [*cuts, n]))
    assert np.concatenate([order.take(a, b) for a, b in reversed(pieces)][::-1]).tolist() == whole.tolist()
    reader = order.reader()
    assert np.concatenate([reader.ids(np.arange(a, b)) for a, b in pieces]).tolist() == whole.tolist()
    if n:
        at = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=30)))
        assert reader.ids(at).tolist() == whole[at].tolist()
        assert [int(reader.ids(at[i : i + 1])[0]) for i in range(len(at))] == whole[at].tolist()


@laws
@given(case=order_cases(), one=worlds(), other=worlds(), per_rank=st.integers(1, 3), start=st.integers(0, 60))
def test_global_batches_are_the_same_sets_in_every_world(
    case: OrderCase, one: Topology, other: Topology, per_rank: int, start: int
) -> None:
    """Law 3: for equal global batches, the positions below N of batch k do not depend on the world."""
    common = math.lcm(one.n_groups, other.n_groups)
    assume(common <= 1000)
    sizes = [common * per_rank // world.n_groups for world in (one, other)]
    if case.spec.batching_method == "device_per_stream":  # then the batch size decides
        sizes = [per_rank, per_rank]
    orders = [case.order(world, size) for world, size in zip((one, other), sizes)]
    assert orders[0].take(0, orders[0].n_samples).tolist() == orders[1].take(0, orders[1].n_samples).tolist()
    start = whole_units(start, orders[0])
    plans = [EpochPlan(orders[0], world, size, start=start) for world, size in zip((one, other), sizes)]
    assert plans[0].n_batches == plans[1].n_batches or sizes[0] == sizes[1]
    for plan in plans:
        for k in range(min(4, plan.n_batches)):
            first = start + k * plan.global_batch
            real = np.arange(first, min(first + plan.global_batch, orders[0].n_samples))
            positions = np.sort(global_batch(plan, k))
            assert positions[: len(real)].tolist() == real.tolist()
            assert (positions[len(real) :] >= orders[0].n_samples).all()


@laws
@given(case=order_cases(), world=worlds(), batch_size=st.integers(1, 9), start=st.integers(0, 40), remainder=REMAINDERS)
def test_every_batch_is_dealt_out_whole_and_evenly(
    case: OrderCase, world: Topology, batch_size: int, start: int, remainder: str
) -> None:
    """Each position of an epoch goes to one rank. All ranks get equally many, or under `exact` one more or less."""
    order = case.order(world, batch_size)
    start = whole_units(start, order)
    plan = EpochPlan(order, world, batch_size, start, remainder)
    assume(plan.n_batches * world.n_groups <= 4000)
    slot = order.slot_samples
    left = max(0, order.n_samples - start) // slot
    kept = {"pad": -(-left // world.n_groups), "drop": left // world.n_groups}
    assert plan.stop - start == slot * (left if remainder == "exact" else kept[remainder] * world.n_groups)
    seen = []
    totals = np.zeros(world.n_groups, np.int64)
    for k in range(plan.n_batches):
        by_rank = [plan.batch_positions(k, rank) for rank in first_ranks(world)]
        sizes = [len(positions) for positions in by_rank]
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= slot * (remainder == "exact")
        totals += sizes
        seen.append(np.concatenate(by_rank))
    assert [plan.rank_samples(rank) for rank in first_ranks(world)] == totals.tolist()
    positions = np.concatenate([np.zeros(0, np.int64), *seen])
    assert np.sort(positions).tolist() == list(range(start, plan.stop))
    if len(positions):
        source = plan.source(positions)
        assert 0 <= source.min() <= source.max() < order.n_samples
        assert source[positions < order.n_samples].tolist() == positions[positions < order.n_samples].tolist()


@laws
@given(case=order_cases(), data=st.data())
def test_after_any_history_of_resumes_the_samples_seen_are_the_start_of_the_order(
    case: OrderCase, data: st.DataObject
) -> None:
    """Law 4: a different world and batch size at each resume change nothing."""
    method = case.spec.batching_method
    order = case.order(Topology(1, 1), 24 if method == "per_stream" else 3)
    whole, consumed, seen = order.take(0, order.n_samples), 0, []
    for _ in range(3):
        world, batch_size = data.draw(worlds()), 3 if method == "device_per_stream" else data.draw(st.integers(1, 4))
        if method == "per_stream":
            assume(24 % world.n_groups == 0)
            batch_size = 24 // world.n_groups
        plan = EpochPlan(order, world, batch_size, consumed, data.draw(REMAINDERS))
        n_done = data.draw(st.integers(0, min(plan.n_batches, 3)))
        for k in range(n_done):
            positions = global_batch(plan, k)
            seen.append(order.reader().ids(plan.source(positions[positions < order.n_samples])))
        consumed = min(consumed + n_done * plan.global_batch, plan.stop)
    ids = np.concatenate([np.zeros(0, np.int64), *seen])
    assert np.sort(ids).tolist() == np.sort(whole[: min(consumed, len(whole))]).tolist()


@laws
@given(case=order_cases(), world=worlds(REPLICATED), batch_size=st.integers(1, 5), remainder=REMAINDERS)
def test_replicas_agree(case: OrderCase, world: Topology, batch_size: int, remainder: str) -> None:
    """Law 5: the ranks of a group get equal positions in equal order, and are on one node."""
    plan = EpochPlan(case.order(world, batch_size), world, batch_size, remainder=remainder)
    assume(plan.n_batches * world.n_ranks <= 2000)
    for k in range(plan.n_batches):
        for group in range(world.n_groups):
            ranks = range(group * world.replication, (group + 1) * world.replication)
            got = [plan.batch_positions(k, rank).tolist() for rank in ranks]
            assert got == got[:1] * world.replication
            assert len({world.node_of(rank) for rank in ranks}) == 1


@laws
@given(
    case=order_cases(),
    world=worlds(),
    batch_size=st.integers(1, 7),
    n_workers=st.sampled_from([1, 2, 3, 8]),
    start=st.integers(0, 40),
    remainder=REMAINDERS,
    asked=st.integers(0, 70),
)
def test_workers_share_the_batches_of_their_rank(
    case: OrderCase, world: Topology, batch_size: int, n_workers: int, start: int, remainder: str, asked: int
) -> None:
    """Batch k goes whole to worker k mod W, however many samples a worker asks for at once."""
    order = case.order(world, batch_size)
    plan = EpochPlan(order, world, batch_size, whole_units(start, order), remainder)
    rank = world.n_ranks - 1
    whole = order.take(0, order.n_samples)
    for worker in range(n_workers):
        reader = WorkerReader(plan, rank, worker, n_workers)
        batches: list[list[int]] = []
        while True:
            floor = reader.position
            ids, lengths = reader.next_ids(asked)
            if not len(lengths):
                break
            upcoming = plan.batch_positions(worker + len(batches) * n_workers, rank)
            assert floor <= int(upcoming.min())
            assert len(ids) == lengths.sum()
            batches += [piece.tolist() for piece in np.split(ids, np.cumsum(lengths)[:-1])]
            assert len(ids) >= asked or len(batches) * n_workers + worker >= plan.n_batches - 1
        expected = [plan.batch_positions(k, rank) for k in range(worker, plan.n_batches, n_workers)]
        assert batches == [whole[plan.source(positions)].tolist() for positions in expected if len(positions)]
        assert reader.next_ids(1)[0].size == 0


@laws
@given(
    case=order_cases(), world=worlds(), batch_size=st.integers(1, 9), start=st.integers(0, 30), skip=st.integers(0, 300)
)
def test_every_shard_that_a_node_needs_is_foreseen(
    case: OrderCase, world: Topology, batch_size: int, start: int, skip: int
) -> None:
    """From any position on, the shards in `first_uses` are distinct, and hold all samples that are still to come."""
    order = case.order(world, batch_size)
    start = whole_units(start, order)
    plan = EpochPlan(order, world, batch_size, start)
    assume(plan.n_batches <= 200)
    position = start + skip
    for node in {0, world.n_nodes // 2, world.n_nodes - 1}:
        batches = [plan.node_batch(k, node) for k in range(plan.n_batches)]
        positions = np.concatenate([np.zeros(0, np.int64), *batches])
        positions = positions[(positions >= position) & (positions < order.n_samples)]
        needed = set(order.catalog.locate(order.reader().ids(positions))[0].tolist()) if len(positions) else set()
        foreseen = plan.first_uses(node, position, 10_000).tolist()
        assert len(set(foreseen)) == len(foreseen)
        assert needed <= set(foreseen)
        assert plan.first_uses(node, position, 2).tolist() == foreseen[:2]
        assert needed <= set(first_uses(order, world, node, position, 10_000).tolist())


@laws
@given(case=order_cases(), world=worlds(), batch_size=st.integers(1, 40))
def test_one_call_for_many_batches_equals_a_call_for_each(case: OrderCase, world: Topology, batch_size: int) -> None:
    """Planning ahead changes nothing, and whole batches in closed form equal the definition by sorting."""
    order = case.order(world, batch_size)
    plan = EpochPlan(order, world, batch_size)
    rank = world.n_ranks // 2
    ks = np.arange(min(plan.n_batches, 30))
    positions, lengths = plan.rank_batches(rank, ks)
    assert positions.tolist() == [q for k in ks.tolist() for q in plan.batch_positions(k, rank).tolist()]
    assert lengths.tolist() == [len(plan.batch_positions(k, rank)) for k in ks.tolist()]
    node = world.node_of(rank)
    for k in ks[:3].tolist():
        ranks = [plan.batch_positions(k, r) for r in world.ranks_of(node)[:: world.replication]]
        assert np.sort(np.concatenate(ranks)).tolist() == np.sort(plan.node_batch(k, node)).tolist()


def stored_runs(order: EpochOrder, stream: int) -> list[int]:
    """Return the lengths of a stream's passes in an epoch."""
    n, n_drawn = int(order.catalog.samples_per_stream[stream]), int(order.draws[stream])
    return [n] * (n_drawn // n) + [n_drawn % n] * (n_drawn % n > 0) if n else []


@laws
@given(case=order_cases(methods=("random",)))
def test_unshuffled_streams_come_one_after_the_other(case: OrderCase) -> None:
    """Without shuffle an epoch is stream 0, pass by pass, then stream 1, …; each pass is in stored order."""
    order = replace(case, spec=replace(case.spec, shuffle=False, num_canonical_nodes=None)).order()
    ids, at, first = order.take(0, order.n_samples), 0, 0
    for stream, n in enumerate(order.catalog.samples_per_stream.tolist()):
        for length in stored_runs(order, stream):
            piece = ids[at : at + length]
            assert (np.diff(piece) > 0).all()
            assert ((first <= piece) & (piece < first + n)).all()
            assert length < n or piece.tolist() == list(range(first, first + n))
            at += length
        first += n
    assert at == order.n_samples


@laws
@given(sizes=st.lists(SHARD_SIZES.map(tuple), min_size=1, max_size=6), epoch=st.integers(0, 3))
def test_an_unshuffled_position_is_the_number_of_its_sample(sizes: list[tuple[int, ...]], epoch: int) -> None:
    """With every stream once, `list(dataset)[i]` is `dataset[i]` on one rank, in every epoch."""
    order = OrderCase(OrderSpec(), tuple(sizes), tuple(map(sum, sizes)), epoch).order()
    assert order.take(0, order.n_samples).tolist() == list(range(order.n_samples))


@laws
@given(case=order_cases(), world=worlds(), batch_size=st.integers(1, 9), start=st.integers(0, 40), remainder=REMAINDERS)
def test_unshuffled_ranks_take_turns_inside_their_node(
    case: OrderCase, world: Topology, batch_size: int, start: int, remainder: str
) -> None:
    """A node's slots of a batch, sorted by position, go to its groups in turns; each group has them in order."""
    case = replace(case, spec=replace(case.spec, shuffle=False))
    order = case.order(world, batch_size)
    plan = EpochPlan(order, world, batch_size, whole_units(start, order), remainder)
    slot = order.slot_samples
    for k in range(min(plan.n_batches, 5)):
        for node in range(world.n_nodes):
            slots = np.sort(plan.node_batch(k, node)).reshape(-1, slot)
            for turn, rank in enumerate(world.ranks_of(node)[:: world.replication]):
                assert plan.batch_positions(k, rank).tolist() == slots[turn :: world.groups_per_node].ravel().tolist()


@laws
@given(case=order_cases(methods=("random", "stratified")), n_ranks=st.integers(1, 9), batch_size=st.integers(1, 7))
def test_unshuffled_ranks_of_one_node_get_what_a_distributed_sampler_gives(
    case: OrderCase, n_ranks: int, batch_size: int
) -> None:
    """Rank r of R gets positions r, r + R, r + 2R, …; so interleaving what ranks got restores the epoch."""
    case = replace(case, spec=replace(case.spec, shuffle=False, num_canonical_nodes=None))
    order = case.order()
    plan = EpochPlan(order, Topology(n_ranks, n_ranks), batch_size)
    for rank in range(n_ranks):
        got, _ = plan.rank_batches(rank, np.arange(plan.n_batches))
        assert got.tolist() == list(range(rank, plan.stop, n_ranks))


@laws
@given(case=order_cases(methods=("stratified", "per_stream", "device_per_stream")))
def test_unshuffled_streams_keep_their_order_and_mix_evenly(case: OrderCase) -> None:
    """Without shuffle each stream comes in stored order. If batched by stream, every prefix holds its share."""
    spec = replace(case.spec, shuffle=False, num_canonical_nodes=None)
    order = replace(case, spec=spec).order()
    ids = order.take(0, order.n_samples)
    streams = order.catalog.stream_of_shard[order.catalog.locate(ids)[0]]
    for stream, n_drawn in enumerate(case.draws):
        mine = ids[streams == stream]
        n = int(order.catalog.samples_per_stream[stream])
        for first in range(0, len(mine), max(1, n)):
            assert (np.diff(mine[first : first + n]) > 0).all()
        if order.unit is None:
            assert len(mine) == n_drawn
            assert prefix_errors(streams, stream).max(initial=0) <= 2


def prefix_errors(streams: NDArray[np.int64], stream: int) -> NDArray[np.float64]:
    """Return by how much each prefix misses a stream's share."""
    counts = np.concatenate([[0], np.cumsum(streams == stream)])
    errors: NDArray[np.float64] = np.abs(counts - np.arange(len(counts)) * (counts[-1] / max(1, len(streams))))
    return errors


@laws
@given(case=order_cases(methods=("stratified",)), size=st.integers(1, 60))
def test_stratified_batches_hold_the_share_of_each_stream(case: OrderCase, size: int) -> None:
    """Every prefix to within 2 samples, every segment to within 4."""
    order = case.order()
    streams = order.catalog.stream_of_shard[order.catalog.locate(order.take(0, order.n_samples))[0]]
    for stream, n_drawn in enumerate(case.draws):
        assert prefix_errors(streams, stream).max(initial=0) <= 2
        for first in range(0, len(streams) - size + 1, size):
            n_here = np.count_nonzero(streams[first : first + size] == stream)
            assert abs(n_here - size * n_drawn / len(streams)) <= 4


@laws
@given(
    case=order_cases(methods=("per_stream", "device_per_stream")),
    world=worlds(),
    batch_size=st.integers(1, 9),
    remainder=REMAINDERS,
)
def test_batches_of_one_stream(case: OrderCase, world: Topology, batch_size: int, remainder: str) -> None:
    """Every device batch is whole and of one stream; so is every global batch under `per_stream`. Units come evenly."""
    order = case.order(world, batch_size)
    plan = EpochPlan(order, world, batch_size, remainder=remainder)
    assume(plan.n_batches * world.n_groups <= 2000)
    stream_of = order.catalog.stream_of_shard[order.catalog.locate(order.take(0, order.n_samples))[0]]
    for k in range(plan.n_batches):
        batches = [stream_of[plan.source(plan.batch_positions(k, rank))] for rank in first_ranks(world)]
        assert all(len(batch) in (0, batch_size) and len(set(batch.tolist())) <= 1 for batch in batches)
        assert case.spec.batching_method != "per_stream" or len(set(np.concatenate(batches).tolist())) == 1
    of_units = stream_of[:: order.unit]
    for stream in range(len(case.streams)):
        errors = prefix_errors(of_units, stream)
        assert errors[:: 1 << 12].max(initial=0) <= 2  # between whole blocks of units
        assert case.spec.shuffle or errors.max(initial=0) <= 2


def test_two_equal_streams_take_turns() -> None:
    """Without shuffle, in each prefix of a mix of two equal streams the counts differ by at most 1."""
    order = OrderCase(OrderSpec(batching_method="stratified"), ((5, 20), (25,)), (25, 25), 0).order()
    from_second = order.take(0, 50) >= 25
    assert np.abs(np.cumsum(np.where(from_second, 1, -1))).max() <= 1


def test_nothing_global_is_touched() -> None:
    """Law 7: the order neither reads nor changes global random states."""
    case = OrderCase(OrderSpec(seed=7, shuffle=True, num_canonical_nodes=4), ((50, 60, 70), (10,)), (180, 20), 1)
    before = random.getstate(), np.random.get_state(legacy=True)
    first = case.order().take(0, 200)
    after = random.getstate(), np.random.get_state(legacy=True)
    assert before[0] == after[0]
    assert repr(before[1]) == repr(after[1])
    random.seed(1)
    np.random.seed(1)
    assert case.order().take(0, 200).tolist() == first.tolist()


def test_the_end_of_an_epoch_is_mixed_like_its_middle() -> None:
    """300 shards of 1,000, a window of 20 shards: the last 1,000 samples come from as many shards as those before."""
    catalog = Catalog(np.full(300, 1000), np.array([300]))
    order = EpochOrder(OrderSpec(shuffle=True, num_canonical_nodes=1, shuffle_block_size=19_000), catalog, 0)
    shards = catalog.locate(order.take(0, 300_000))[0].reshape(300, 1000)
    distinct = np.array([len(np.unique(row)) for row in shards])
    slices = distinct.reshape(20, 15).mean(axis=1)
    assert abs(slices[-1] / slices[9] - 1) <= 0.1
    assert abs(slices[0] / slices[9] - 1) <= 0.1
    assert distinct.min() >= 19


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS)))
def test_one_shard_feeds_many_readers(algorithm: str) -> None:
    """1 shard, 8 ranks with 4 workers each: batches are even, and every sample is read once."""
    order = EpochOrder(OrderSpec(shuffle=True, shuffle_algo=algorithm), Catalog(np.array([1000]), np.array([1])), 0)
    plan = EpochPlan(order, Topology(8, 8), 5)
    seen = []
    for rank in range(8):
        lengths = []
        for worker in range(4):
            ids, worker_lengths = WorkerReader(plan, rank, worker, 4).next_ids(10**6)
            seen += ids.tolist()
            lengths += worker_lengths.tolist()
        assert sorted(lengths) == [5] * 25
    assert sorted(seen) == list(range(1000))


@pytest.mark.parametrize("n_samples", [0, 1, 2, 5, 63, 64, 65])
@pytest.mark.parametrize("n_ranks", [1, 2, 8])
def test_few_samples_are_padded_by_less_than_a_sample_for_each_rank(n_samples: int, n_ranks: int) -> None:
    """Padding, dropping or neither, as `remainder` says; and no more than necessary."""
    order = EpochOrder(OrderSpec(shuffle=True), Catalog(np.array([n_samples]), np.array([1])), 0)
    for remainder, sign in (("pad", 1), ("drop", -1), ("exact", 0)):
        plan = EpochPlan(order, Topology(n_ranks, n_ranks), 4, remainder=remainder)
        assert 0 <= sign * (plan.stop - n_samples) < n_ranks or not sign
        assert sign or plan.stop == n_samples
        assert plan.n_batches == -(-plan.stop // (4 * n_ranks))


def test_padding_begins_elsewhere_in_each_epoch() -> None:
    """The samples that are repeated differ from epoch to epoch."""
    catalog = Catalog(np.array([1001]), np.array([1]))
    starts = {int(EpochOrder(OrderSpec(), catalog, epoch).source(np.array([1001]))[0]) for epoch in range(5)}
    assert len(starts) == 5


def test_epochs_and_seeds_differ_and_nodes_keep_their_shards() -> None:
    """Another epoch orders anew, but each canonical node keeps its shards; another seed deals the shards anew."""
    catalog = Catalog(np.full(64, 30), np.array([64]))
    specs = [OrderSpec(seed=seed, shuffle=True, num_canonical_nodes=4) for seed in (1, 2)]
    (first, second), (other, _) = ([EpochOrder(spec, catalog, epoch) for epoch in (0, 1)] for spec in specs)
    assert first.take(0, 1920).tolist() != second.take(0, 1920).tolist()
    first_nodes = [set(catalog.locate(order.take(0, 1920)[::4])[0].tolist()) for order in (first, second, other)]
    assert first_nodes[0] == first_nodes[1] != first_nodes[2]


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_replication_changes_no_global_batch(method: str) -> None:
    """A global batch of 24 is the same set for every replication factor."""
    case = OrderCase(OrderSpec(shuffle=True, batching_method=method), ((50, 60, 70), (31,)), (180, 31), 1)
    expected: list[list[int]] = []
    for n_ranks, replication in ((4, 1), (4, 2), (8, 2), (8, 4), (24, 3)):
        world = Topology.of(n_ranks, 4, replication)
        order = case.order(world, 24 // world.n_groups)
        plan = EpochPlan(order, world, 24 // world.n_groups)
        if method == "device_per_stream":  # the unit is part of the order: compare where it is the same
            assert sorted(order.take(0, order.n_samples).tolist()) == sorted(set(order.take(0, order.n_samples)))
            continue
        n_real = order.n_samples // 24
        batches = [np.sort(order.reader().ids(global_batch(plan, k))).tolist() for k in range(n_real)]
        expected = expected or batches
        assert batches == expected


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
def test_streams_smaller_than_a_batch_are_left_out_by_count(remainder: str) -> None:
    """Streams of 3, 10 and 1,000 samples, device batches of 8, 4 ranks."""
    streams = ((3,), (4, 6), (300, 700))
    for method, left_out in (("device_per_stream", [3, 2, 0]), ("per_stream", [3, 10, 8])):
        for shuffle in (True, False):
            case = OrderCase(OrderSpec(shuffle=shuffle, batching_method=method), streams, (3, 10, 1000), 0)
            world = Topology(4, 2)
            plan = EpochPlan(case.order(world, 8), world, 8, remainder=remainder)
            assert plan.left_out.tolist() == left_out
            positions = np.concatenate([global_batch(plan, k) for k in range(plan.n_batches)])
            n_units = (1013 - sum(left_out)) // 8
            kept = {"pad": -(-n_units // 4) * 4, "drop": n_units // 4 * 4, "exact": n_units}[remainder]
            assert len(positions) == 8 * kept


@pytest.mark.parametrize("n_workers", [1, 2, 7])
def test_what_is_dropped_does_not_depend_on_workers(n_workers: int) -> None:
    """1,003 samples in batches of 10: with any number of workers, all samples come but those that ranks drop."""
    order = EpochOrder(OrderSpec(shuffle=True), Catalog(np.array([1003]), np.array([1])), 0)
    plan = EpochPlan(order, Topology(10, 10), 1, remainder="drop")
    ids = [
        sample
        for rank in range(10)
        for worker in range(n_workers)
        for sample in WorkerReader(plan, rank, worker, n_workers).next_ids(10**6)[0].tolist()
    ]
    assert sorted(ids) == sorted(order.take(0, 1000).tolist())


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_training_goes_on_in_other_worlds(method: str) -> None:
    """Resumed at sample 480 on 1, 2, 4, 6 and 16 ranks with various workers, training sees just what remains."""
    case = OrderCase(OrderSpec(shuffle=True, batching_method=method), ((100,) * 20, (50,) * 7), (1700, 500), 2)
    unit = {"per_stream": 48, "device_per_stream": 3}.get(method)
    sizes = np.array([size for stream in case.streams for size in stream])
    order = EpochOrder(case.spec, Catalog(sizes, np.array([20, 7])), 2, np.array(case.draws), unit)
    whole = order.take(0, order.n_samples)
    for n_ranks, n_workers in ((1, 1), (2, 5), (4, 2), (6, 3), (16, 8)):
        plan = EpochPlan(order, Topology.of(n_ranks, 2), 3 if method == "device_per_stream" else 48 // n_ranks, 480)
        seen: list[int] = []
        for rank in range(n_ranks):
            for worker in range(n_workers):
                seen += WorkerReader(plan, rank, worker, n_workers).next_ids(10**6)[0].tolist()
        remaining = np.sort(whole[480:])
        assert np.sort(order.reader().ids(plan.source(np.arange(480, plan.stop)))).tolist() == sorted(seen)
        assert len(seen) - len(remaining) < n_ranks * order.slot_samples
