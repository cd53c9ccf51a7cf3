"""The laws of the order, over generated datasets, settings, worlds and histories."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology, WorkerReader, first_uses

laws = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SHARD_SIZES = st.one_of(
    st.lists(st.integers(0, 40), max_size=12),
    st.lists(st.just(1), min_size=1, max_size=20),
    st.lists(st.integers(0, 2), max_size=12),
    st.lists(st.sampled_from([0, 1, 3, 300]), max_size=5),
)


@dataclass(frozen=True)
class OrderCase:
    """Settings and data; `repr` is what hypothesis shows."""

    spec: OrderSpec
    streams: tuple[tuple[int, ...], ...]
    passes: tuple[int, ...]
    epoch: int

    def order(self) -> EpochOrder:
        sizes = np.array([size for stream in self.streams for size in stream], np.int64)
        catalog = Catalog(sizes, np.array([len(stream) for stream in self.streams]))
        return EpochOrder(self.spec, catalog, self.epoch, catalog.samples_per_stream * np.array(self.passes))


@st.composite
def order_cases(draw: st.DrawFn, *, algorithms: tuple[str, ...] = ("py1e", "py1e", "py1s", "naive")) -> OrderCase:
    streams = draw(st.lists(SHARD_SIZES.map(tuple), min_size=1, max_size=6))
    spec = OrderSpec(
        seed=draw(st.integers(0, 2**63 - 1)),
        shuffle=draw(st.sampled_from([True, True, True, False])),
        shuffle_algo=draw(st.sampled_from(algorithms)),
        num_canonical_nodes=draw(st.sampled_from([None, 1, 2, 3, 4, 8, 16, 64])),
        shuffle_block_size=draw(st.sampled_from([None, 1, 3, 10, 50, 400, 10_000])),
    )
    passes = tuple(draw(st.sampled_from([1, 1, 1, 0, 2, 3])) for _ in streams)
    return OrderCase(spec, tuple(streams), passes, draw(st.integers(0, 3)))


@st.composite
def worlds(draw: st.DrawFn) -> Topology:
    n_nodes, ranks = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 4), (3, 2), (5, 1), (8, 8), (64, 8), (3, 5)]))
    return Topology(n_nodes * ranks, ranks)


REMAINDERS = st.sampled_from(["pad", "drop", "exact"])


def global_batch(plan: EpochPlan, k: int) -> NDArray[np.int64]:
    return np.concatenate([plan.batch_positions(k, rank) for rank in range(plan.topology.n_ranks)])


@laws
@given(case=order_cases())
def test_each_sample_appears_as_often_as_it_was_drawn(case: OrderCase) -> None:
    """Law 1."""
    order = case.order()
    expected = np.repeat(case.passes, [sum(stream) for stream in case.streams])
    counts = np.bincount(order.take(0, order.n_samples), minlength=order.catalog.n_samples)
    assert counts.tolist() == expected.tolist()


@laws
@given(case=order_cases(), data=st.data())
def test_any_cuts_and_any_access_give_the_whole(case: OrderCase, data: st.DataObject) -> None:
    """Law 2: forwards, backwards, in pieces, at random, by a reader or without one."""
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
    """Law 3: with the same global batch, the positions below N of batch k do not depend on who reads them."""
    order = case.order()
    common = math.lcm(one.n_ranks, other.n_ranks)
    assume(common <= 1000)
    plans = [EpochPlan(order, world, common * per_rank // world.n_ranks, start=start) for world in (one, other)]
    assert plans[0].n_batches == plans[1].n_batches
    for k in range(min(4, plans[0].n_batches)):
        first = start + k * plans[0].global_batch
        real = np.arange(first, min(first + plans[0].global_batch, order.n_samples))
        for plan in plans:
            positions = np.sort(global_batch(plan, k))
            assert positions[: len(real)].tolist() == real.tolist()
            assert (positions[len(real) :] >= order.n_samples).all()


@laws
@given(case=order_cases(), world=worlds(), batch_size=st.integers(1, 9), start=st.integers(0, 40), remainder=REMAINDERS)
def test_every_batch_is_dealt_out_whole_and_evenly(
    case: OrderCase, world: Topology, batch_size: int, start: int, remainder: str
) -> None:
    """Each position of an epoch goes to one rank; ranks get as many as each other (one less, under `exact`)."""
    order = case.order()
    plan = EpochPlan(order, world, batch_size, start, remainder)
    assume(plan.n_batches * world.n_ranks <= 4000)
    left = max(0, order.n_samples - start)
    kept = {"pad": -(-left // world.n_ranks), "drop": left // world.n_ranks}
    assert plan.stop - start == (left if remainder == "exact" else kept[remainder] * world.n_ranks)
    seen = []
    for k in range(plan.n_batches):
        by_rank = [plan.batch_positions(k, rank) for rank in range(world.n_ranks)]
        sizes = [len(positions) for positions in by_rank]
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= (remainder == "exact")
        seen.append(np.concatenate(by_rank))
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
    """Law 4: another world and another batch size at each resume change nothing."""
    order = case.order()
    whole, consumed, seen = order.take(0, order.n_samples), 0, []
    for _ in range(3):
        world, batch_size = data.draw(worlds()), data.draw(st.integers(1, 4))
        plan = EpochPlan(order, world, batch_size, consumed, data.draw(REMAINDERS))
        n_done = data.draw(st.integers(0, min(plan.n_batches, 3)))
        for k in range(n_done):
            positions = global_batch(plan, k)
            seen.append(order.reader().ids(plan.source(positions[positions < order.n_samples])))
        consumed = min(consumed + n_done * plan.global_batch, plan.stop)
    ids = np.concatenate([np.zeros(0, np.int64), *seen])
    assert np.sort(ids).tolist() == np.sort(whole[: min(consumed, len(whole))]).tolist()


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
    """Batch k goes to worker k mod W, whole; however much a worker asks for at once."""
    order = case.order()
    plan = EpochPlan(order, world, batch_size, start, remainder)
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
    case=order_cases(algorithms=("py1e", "py1s")),
    world=worlds(),
    batch_size=st.integers(1, 70),
    start=st.integers(0, 70),
)
def test_nodes_keep_to_their_canonical_nodes(case: OrderCase, world: Topology, batch_size: int, start: int) -> None:
    """Law 6: over the full batches, few (node, canonical node) pairs; none shared if P | C and C | G."""
    order = case.order()
    assume(order.merge is None)
    plan = EpochPlan(order, world, batch_size, start)
    n_lanes, n_nodes = order.n_canonical_nodes, world.n_nodes
    readers: dict[int, set[int]] = {}
    for k in range(plan.n_regular_batches):
        for node in range(n_nodes):
            for lane in np.unique(order.canonical_nodes(plan.node_batch(k, node))).tolist():
                readers.setdefault(lane, set()).add(node)
    pairs = sum(len(nodes) for nodes in readers.values())
    divides = plan.global_batch % n_lanes == 0
    assert pairs <= (n_lanes + n_nodes - 1) * (1 if divides else 2)
    for nodes in readers.values():
        assert max(nodes) - min(nodes) == len(nodes) - 1
        assert len(nodes) == 1 or not (divides and n_lanes % n_nodes == 0)


@laws
@given(
    case=order_cases(), world=worlds(), batch_size=st.integers(1, 9), start=st.integers(0, 30), skip=st.integers(0, 300)
)
def test_every_shard_that_a_node_needs_is_foreseen(
    case: OrderCase, world: Topology, batch_size: int, start: int, skip: int
) -> None:
    """From any position on, the shards in `first_uses` are distinct and hold all samples that are still to come."""
    order = case.order()
    plan = EpochPlan(order, world, batch_size, start)
    assume(plan.n_batches <= 200)
    position = start + skip
    for node in {0, world.n_nodes // 2, world.n_nodes - 1}:
        parts = [plan.node_batch(k, node) for k in range(plan.n_batches)]
        positions = np.concatenate([np.zeros(0, np.int64), *parts])
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
    """Planning ahead changes nothing; whole batches in closed form equal the definition by sorting."""
    order = case.order()
    plan = EpochPlan(order, world, batch_size)
    rank = world.n_ranks // 2
    ks = np.arange(min(plan.n_batches, 30))
    positions, lengths = plan.rank_batches(rank, ks)
    assert positions.tolist() == [q for k in ks.tolist() for q in plan.batch_positions(k, rank).tolist()]
    assert lengths.tolist() == [len(plan.batch_positions(k, rank)) for k in ks.tolist()]
    node = world.node_of(rank)
    for k in ks[:3].tolist():
        ranks = [plan.batch_positions(k, r) for r in world.ranks_of(node)]
        assert np.sort(np.concatenate(ranks)).tolist() == np.sort(plan.node_batch(k, node)).tolist()


@laws
@given(case=order_cases())
def test_unshuffled_streams_keep_their_order_and_mix_evenly(case: OrderCase) -> None:
    """Without shuffle each stream comes in stored order, and every prefix holds its share to within 2 samples."""
    spec = OrderSpec(seed=case.spec.seed, shuffle=False)
    order = OrderCase(spec, case.streams, case.passes, case.epoch).order()
    ids = order.take(0, order.n_samples)
    streams = order.catalog.stream_of_shard[order.catalog.locate(ids)[0]]
    start = 0
    for stream, (sizes, n_passes) in enumerate(zip(case.streams, case.passes)):
        mine = ids[streams == stream]
        assert mine.tolist() == list(range(start, start + sum(sizes))) * n_passes
        start += sum(sizes)
        share = np.arange(len(ids) + 1) * (len(mine) / max(1, len(ids)))
        counts = np.concatenate([[0], np.cumsum(streams == stream)])
        assert np.abs(counts - share).max(initial=0) <= 2


def test_two_equal_streams_take_turns() -> None:
    """Without shuffle, in each prefix of a mix of two equal streams the counts differ by at most 1."""
    order = OrderCase(OrderSpec(), ((5, 20), (25,)), (1, 1), 0).order()
    from_second = order.take(0, 50) >= 25
    assert np.abs(np.cumsum(np.where(from_second, 1, -1))).max() <= 1


def test_nothing_global_is_touched() -> None:
    """Law 7: global random states are neither read nor changed."""
    case = OrderCase(OrderSpec(seed=7, shuffle=True, num_canonical_nodes=4), ((50, 60, 70), (10,)), (1, 2), 1)
    before = random.getstate(), np.random.get_state(legacy=True)
    first = case.order().take(0, 200)
    after = random.getstate(), np.random.get_state(legacy=True)
    assert before[0] == after[0]
    assert repr(before[1]) == repr(after[1])
    random.seed(1)
    np.random.seed(1)
    assert case.order().take(0, 200).tolist() == first.tolist()


def test_the_end_of_an_epoch_is_mixed_like_its_middle() -> None:
    """300 shards of 1,000, a window of 20 shards: the last 1,000 draw from as many shards as those in the middle."""
    catalog = Catalog(np.full(300, 1000), np.array([300]))
    order = EpochOrder(OrderSpec(shuffle=True, num_canonical_nodes=1, shuffle_block_size=19_000), catalog, 0)
    shards = catalog.locate(order.take(0, 300_000))[0].reshape(300, 1000)
    distinct = np.array([len(np.unique(row)) for row in shards])
    slices = distinct.reshape(20, 15).mean(axis=1)
    assert abs(slices[-1] / slices[9] - 1) <= 0.1
    assert abs(slices[0] / slices[9] - 1) <= 0.1
    assert distinct.min() >= 19


@pytest.mark.parametrize("algorithm", ["py1e", "py1s", "naive"])
def test_one_shard_feeds_many_readers(algorithm: str) -> None:
    """1 shard, 8 ranks with 4 workers each: even batches, everything read once."""
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
    """Padding, dropping or neither: by name, and no more than there must be."""
    order = EpochOrder(OrderSpec(shuffle=True), Catalog(np.array([n_samples]), np.array([1])), 0)
    for remainder, sign in (("pad", 1), ("drop", -1), ("exact", 0)):
        plan = EpochPlan(order, Topology(n_ranks, n_ranks), 4, remainder=remainder)
        assert 0 <= sign * (plan.stop - n_samples) < n_ranks or not sign
        assert sign or plan.stop == n_samples
        assert plan.n_batches == -(-plan.stop // (4 * n_ranks))


def test_padding_begins_elsewhere_in_each_epoch() -> None:
    """The samples that are repeated are not the same ones every time."""
    catalog = Catalog(np.array([1001]), np.array([1]))
    starts = {int(EpochOrder(OrderSpec(), catalog, epoch).source(np.array([1001]))[0]) for epoch in range(5)}
    assert len(starts) == 5


def test_epochs_and_seeds_differ_and_nodes_keep_their_shards() -> None:
    """Another epoch is another order of the same shards in the same canonical nodes; another seed deals anew."""
    catalog = Catalog(np.full(64, 30), np.array([64]))
    specs = [OrderSpec(seed=seed, shuffle=True, num_canonical_nodes=4) for seed in (1, 2)]
    (first, second), (other, _) = ([EpochOrder(spec, catalog, epoch) for epoch in (0, 1)] for spec in specs)
    assert first.take(0, 1920).tolist() != second.take(0, 1920).tolist()
    lane_0 = [set(catalog.locate(order.take(0, 1920)[::4])[0].tolist()) for order in (first, second, other)]
    assert lane_0[0] == lane_0[1] != lane_0[2]
