"""The laws of the order where every batch has the same whole number of samples of each stream."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology, WorkerReader, first_uses
from streaming.order.batching.exact_merge import composition_of
from streaming.order.nodes.assignment import canonical_nodes_of_batches

laws = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

WORLDS = [(1, 1, 1), (1, 3, 1), (2, 1, 1), (2, 4, 1), (3, 2, 1), (5, 1, 1), (1, 2, 2), (2, 4, 2), (2, 2, 4), (4, 1, 2)]


@dataclass(frozen=True)
class ExactCase:
    """Settings, data, and the batch size for which the order is made, shown by hypothesis as their `repr`."""

    spec: OrderSpec
    streams: tuple[tuple[int, ...], ...]
    draws: tuple[int, ...]
    epoch: int
    batch_size: int

    def catalog(self) -> Catalog:
        """Make the catalog."""
        sizes = np.array([size for stream in self.streams for size in stream], np.int64)
        return Catalog(sizes, np.array([len(stream) for stream in self.streams]))

    def order(self, batch_size: int | None = None) -> EpochOrder:
        """Make the order; a case in which a batch would hold none of a stream is no case."""
        try:
            return EpochOrder(
                self.spec, self.catalog(), self.epoch, np.array(self.draws), batch_size or self.batch_size
            )
        except OptionError as error:
            if "would have none" in str(error):
                reject()
            raise

    def plan(self, order: EpochOrder, world: Topology, n_units: int, start: int = 0) -> EpochPlan:
        """Make a plan with batches of `n_units` units; a case without a whole batch is no case."""
        batch_size = n_units * (order.unit or 1)
        assume(not sum(self.draws) or batch_size * world.n_groups <= order.n_samples)
        return EpochPlan(order, world, batch_size, start)


@st.composite
def exact_cases(draw: st.DrawFn) -> ExactCase:
    shares = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    scale = draw(st.integers(1, 60))
    shards = st.lists(st.one_of(st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=8).filter(any)
    spec = OrderSpec(
        seed=draw(st.integers(0, 2**63 - 1)),
        shuffle=draw(st.booleans()),
        shuffle_algo=draw(st.sampled_from(["py1e", "py1e", "py1s", "py2s", "py1b", "py1br", "naive"])),
        num_canonical_nodes=draw(st.sampled_from([None, 1, 2, 3, 4, 8, 16])),
        shuffle_block_size=draw(st.sampled_from([None, 1, 3, 10, 50, 400])),
        batching_method="stratified",
        sampling_granularity=draw(st.sampled_from([1, 1, 2, 7])),
        batch_composition="exact",
    )
    draws = tuple(share * scale + draw(st.sampled_from([0, 0, 1, 2])) * (share > 0) for share in shares)
    batch_size = max(1, sum(shares)) * draw(st.integers(1, 3))
    return ExactCase(spec, tuple(tuple(draw(shards)) for _ in shares), draws, draw(st.integers(0, 3)), batch_size)


@st.composite
def worlds(draw: st.DrawFn) -> Topology:
    n_nodes, ranks, replication = draw(st.sampled_from(WORLDS))
    return Topology(n_nodes * ranks, ranks, replication)


def first_ranks(world: Topology) -> range:
    return range(0, world.n_ranks, world.replication)


def global_batch(plan: EpochPlan, k: int) -> NDArray[np.int64]:
    return np.concatenate([plan.batch_positions(k, rank) for rank in first_ranks(plan.topology)])


def streams_at(order: EpochOrder, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    ids = order.reader().ids(positions)
    return order.catalog.stream_of_shard[order.catalog.locate(ids)[0]]


@laws
@given(case=exact_cases())
def test_the_epoch_is_the_streams_of_the_proportional_order_in_whole_units(case: ExactCase) -> None:
    """Each stream keeps the order that it has with proportional batches. What exceeds the composition is left out."""
    order = case.order()
    assert order.composition is not None
    assert order.unit == max(1, sum(order.composition))
    n_units = min((n // share for n, share in zip(case.draws, order.composition) if share), default=0)
    ids = order.take(0, order.n_samples)
    proportional = OrderSpec(**{name: getattr(case.spec, name) for name in SHARED}, batching_method="stratified")
    other = EpochOrder(proportional, case.catalog(), case.epoch, np.array(case.draws))
    known = other.take(0, other.n_samples)
    streams, known_streams = (case.catalog().stream_of_shard[case.catalog().locate(x)[0]] for x in (ids, known))
    for stream, share in enumerate(order.composition):
        mine = ids[streams == stream]
        assert mine.tolist() == known[known_streams == stream][: n_units * share].tolist()
        assert order.left_out[stream] == case.draws[stream] - len(mine)
    unit = np.repeat(np.arange(len(order.composition)), order.composition)
    assert streams.tolist() == np.tile(unit, n_units).tolist()


SHARED = ("seed", "shuffle", "shuffle_algo", "num_canonical_nodes", "shuffle_block_size", "sampling_granularity")


@laws
@given(case=exact_cases(), data=st.data())
def test_any_cuts_give_the_whole(case: ExactCase, data: st.DataObject) -> None:
    """Law 2, and a position is found again from the sub-order that it was found in."""
    order = case.order()
    n = order.n_samples
    whole = order.take(0, n)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    pieces = [order.take(a, b) for a, b in reversed(list(zip([0, *cuts], [*cuts, n])))]
    assert np.concatenate(pieces[::-1]).tolist() == whole.tolist()
    merge = order.merge
    assert merge is not None
    sub_orders, own = order.find(np.arange(n))
    for at in (0, n // 3, n):
        assert merge.counts(at) == [np.count_nonzero(sub_orders[:at] == i) for i in range(len(case.draws))]
    for number in set(sub_orders.tolist()):
        positions = np.flatnonzero(sub_orders == number)
        assert own[positions].tolist() == list(range(len(positions)))


@laws
@given(case=exact_cases(), world=worlds(), n_units=st.integers(1, 4), start=st.integers(0, 5))
def test_every_batch_has_the_composition_stream_by_stream(
    case: ExactCase, world: Topology, n_units: int, start: int
) -> None:
    """Of each rank, and so of all together; whole batches only, and each position goes to one rank."""
    order = case.order()
    assert order.composition is not None
    assert order.unit is not None
    plan = case.plan(order, world, n_units, start * order.unit)
    listed = np.repeat(np.arange(len(order.composition)), np.array(order.composition) * n_units).tolist()
    for k in range(plan.n_batches):
        for rank in first_ranks(world):
            assert streams_at(order, plan.batch_positions(k, rank)).tolist() == listed
    seen = [np.zeros(0, np.int64), *(global_batch(plan, k) for k in range(plan.n_batches))]
    assert np.sort(np.concatenate(seen)).tolist() == list(range(plan.start, plan.stop))
    left = max(0, order.n_samples - plan.start)
    assert plan.stop - plan.start == left // plan.global_batch * plan.global_batch
    assert (plan.start >= plan.spent_at) == (plan.n_batches == 0)


@laws
@given(case=exact_cases(), world=worlds(), n_units=st.integers(1, 4))
def test_each_stream_of_a_batch_is_dealt_as_a_batch_of_its_own(case: ExactCase, world: Topology, n_units: int) -> None:
    """A node's samples of a stream are those of its canonical nodes: sorted by canonical node, and cut."""
    order = case.order()
    plan = case.plan(order, world, n_units)
    for k in range(min(plan.n_batches, 3)):
        positions = np.arange(k * plan.global_batch, (k + 1) * plan.global_batch)
        sub_orders, own = order.find(positions)
        for node in range(world.n_nodes):
            expected = []
            for number, sub_order in enumerate(order.sub_orders):
                mine = np.flatnonzero(sub_orders == number)
                in_order = mine[np.argsort(sub_order.grid.locate(own[mine])[0], kind="stable")]
                groups = world.groups_of(node)
                low, high = (len(mine) * group // world.n_groups for group in (groups.start, groups.stop))
                expected += positions[in_order[low:high]].tolist()
            assert plan.node_batch(k, node).tolist() == expected
            got = [plan.batch_positions(k, rank) for rank in world.ranks_of(node)[:: world.replication]]
            assert sorted(np.concatenate(got).tolist()) == sorted(expected)
            if not case.spec.shuffle:
                for rank_positions in got:
                    streams = streams_at(order, rank_positions)
                    assert all(np.diff(rank_positions[streams == s]).min(initial=1) > 0 for s in range(len(case.draws)))


@laws
@given(case=exact_cases(), one=worlds(), other=worlds(), n_units=st.integers(1, 2), start=st.integers(0, 5))
def test_global_batches_are_the_same_sets_in_every_world(
    case: ExactCase, one: Topology, other: Topology, n_units: int, start: int
) -> None:
    """Law 3: with the same composition, batch k depends on the size of a global batch alone."""
    order = case.order()
    common = math.lcm(one.n_groups, other.n_groups) * n_units
    begin = start * (order.unit or 1)
    plans = [case.plan(order, world, common // world.n_groups, begin) for world in (one, other)]
    assert plans[0].n_batches == plans[1].n_batches
    for k in range(plans[0].n_batches):
        expected = list(range(begin + k * plans[0].global_batch, begin + (k + 1) * plans[0].global_batch))
        assert [np.sort(global_batch(plan, k)).tolist() for plan in plans] == [expected, expected]


@laws
@given(case=exact_cases(), data=st.data())
def test_after_any_history_of_resumes_the_samples_seen_are_the_start_of_the_order(
    case: ExactCase, data: st.DataObject
) -> None:
    """Law 4: with other worlds and other batch sizes of the same composition."""
    order = case.order()
    consumed, seen = 0, [np.zeros(0, np.int64)]
    for _ in range(3):
        plan = case.plan(order, data.draw(worlds()), data.draw(st.integers(1, 3)), consumed)
        n_done = data.draw(st.integers(0, min(plan.n_batches, 3)))
        seen += [global_batch(plan, k) for k in range(n_done)]
        consumed += n_done * plan.global_batch
    assert np.sort(np.concatenate(seen)).tolist() == list(range(consumed))


@laws
@given(case=exact_cases(), world=worlds(), n_workers=st.sampled_from([1, 2, 3]), asked=st.integers(0, 40))
def test_workers_and_replicas(case: ExactCase, world: Topology, n_workers: int, asked: int) -> None:
    """Law 5, and batch k goes whole to worker k mod W; one call for many batches equals a call for each."""
    order = case.order()
    plan = case.plan(order, world, 1)
    whole = order.take(0, order.n_samples)
    for rank in {0, world.n_ranks - 1}:
        twin = rank // world.replication * world.replication
        for worker in range(n_workers):
            reader, batches = WorkerReader(plan, rank, worker, n_workers), []
            while len((found := reader.next_ids(asked))[1]):
                batches += [piece.tolist() for piece in np.split(found[0], np.cumsum(found[1])[:-1])]
            expected = [plan.batch_positions(k, twin) for k in range(worker, plan.n_batches, n_workers)]
            assert batches == [whole[positions].tolist() for positions in expected]


@laws
@given(case=exact_cases(), world=worlds(), n_units=st.integers(1, 3), skip=st.integers(0, 200))
def test_every_shard_and_canonical_node_that_a_node_needs_is_foreseen(
    case: ExactCase, world: Topology, n_units: int, skip: int
) -> None:
    """From any position on; and each stream keeps to the bound of a single order."""
    order = case.order()
    plan = case.plan(order, world, n_units)
    n_pairs = np.zeros(len(order.sub_orders), np.int64)
    for node in range(world.n_nodes):
        foreseen_nodes = canonical_nodes_of_batches(order, world, node, 0, plan.global_batch, plan.n_batches)
        batches = [np.zeros(0, np.int64), *(plan.node_batch(k, node) for k in range(plan.n_batches))]
        positions = np.concatenate(batches)
        sub_orders, own = order.find(positions)
        for number, sub_order in enumerate(order.sub_orders):
            read = np.unique(sub_order.grid.locate(own[sub_orders == number])[0])
            n_pairs[number] += len(read)
            assert np.isin(read, foreseen_nodes[number]).all()
        positions = positions[positions >= skip]
        needed = set(order.catalog.locate(order.reader().ids(positions))[0].tolist())
        foreseen = plan.first_uses(node, skip, 10_000).tolist()
        assert len(set(foreseen)) == len(foreseen)
        assert needed <= set(foreseen)
        assert needed <= set(first_uses(order, world, node, skip, 10_000).tolist())
    for share, n, sub_order in zip(order.composition or [], n_pairs.tolist(), order.sub_orders):
        n_canonical_nodes, n_slots = sub_order.n_canonical_nodes, plan.global_batch // (order.unit or 1) * share
        assert n <= (n_canonical_nodes + world.n_nodes - 1) * (1 if n_slots % n_canonical_nodes == 0 else 2)


@laws
@given(st.lists(st.one_of(st.integers(0, 50), st.integers(0, 10**12)), max_size=6), st.integers(1, 300))
def test_a_composition_follows_the_shares_as_whole_numbers_can(draws: list[int], batch_size: int) -> None:
    """Within one sample of the share, adding up to the batch; or an error that names a batch size that works."""
    try:
        composition = composition_of(draws, batch_size)
    except OptionError as error:
        enough = int(str(error).split("batch_size=")[1].split()[0])
        assert enough > batch_size
        assert all(count for count, n in zip(composition_of(draws, enough), draws) if n)
        return
    total, unit = sum(draws), sum(composition)
    assert [count > 0 for count in composition] == [n > 0 for n in draws]
    if total:
        assert batch_size % unit == 0
        assert math.gcd(*composition) == 1
        for count, n in zip(composition, draws):
            assert abs(count * (batch_size // unit) * total - n * batch_size) < total


def test_equal_rests_are_rounded_up_for_the_smaller_stream() -> None:
    """9 : 1 in batches of 5 is 4 : 1, not 5 : 0."""
    assert composition_of([900, 100], 5) == [4, 1]
    assert composition_of([100, 900], 5) == [1, 4]
    assert composition_of([30, 30, 0], 32) == [1, 1, 0]


def test_what_cannot_be_kept_is_refused_by_name() -> None:
    """A stream without a sample in a batch, an epoch without a whole batch, and settings that contradict it."""
    spec = OrderSpec(batching_method="stratified", batch_composition="exact")
    catalog = Catalog(np.array([90, 10]), np.array([1, 1]))
    with pytest.raises(OptionError, match=r"stream 1 gives 10 of the 100.*batch_size=10 "):
        EpochOrder(spec, catalog, 0, unit=4)
    order = EpochOrder(spec, catalog, 0, unit=10)
    with pytest.raises(OptionError, match="multiple of 10, not 5"):
        EpochPlan(order, Topology(1, 1), 5)
    with pytest.raises(OptionError, match=r"no whole batch.*9 : 1.*11 x 10"):
        EpochPlan(order, Topology(11, 1), 10)
    with pytest.raises(OptionError, match="remainder='exact'"):
        EpochPlan(order, Topology(1, 1), 10, remainder="exact")
    with pytest.raises(OptionError, match="multiple of 10 samples only"):
        EpochPlan(order, Topology(1, 1), 10, 5)
    with pytest.raises(OptionError, match="`unit`"):
        EpochOrder(spec, catalog, 0)
    for method in ("random", "per_stream", "device_per_stream"):
        with pytest.raises(OptionError, match=f"batching_method='stratified'.*'{method}'"):
            OrderSpec(batching_method=method, batch_composition="exact")
    with pytest.raises(OptionError, match="batch_composition must be one of 'proportional', 'exact'"):
        OrderSpec(batch_composition="odd")
