"""Law 6: a node reads few canonical nodes, which lie side by side, whatever the batching method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology
from streaming.order.grid import most_missed, spread
from streaming.order.nodes.assignment import canonical_nodes_of_batches

METHODS = ("random", "stored", "stratified", "per_stream", "device_per_stream")
MOST_BATCHES = 500


@dataclass(frozen=True)
class NodeCase:
    """Streams of one shard each, on some nodes. The method `stored` is `random` without shuffle."""

    method: str
    draws: tuple[int, ...]
    n_canonical_nodes: int
    world: Topology
    batch_size: int
    seed: int = 1
    start: int = 0

    def plan(self) -> EpochPlan:
        """Plan the batches of the case."""
        spec = OrderSpec(
            seed=self.seed,
            shuffle=self.method != "stored",
            num_canonical_nodes=self.n_canonical_nodes,
            batching_method="random" if self.method == "stored" else self.method,
        )
        catalog = Catalog(np.array(self.draws), np.ones(len(self.draws), np.int64))
        units = {"per_stream": self.batch_size * self.world.n_groups, "device_per_stream": self.batch_size}
        unit = units.get(self.method, 1)
        order = EpochOrder(spec, catalog, 0, unit=unit)
        return EpochPlan(order, self.world, self.batch_size, self.start // unit * unit)


@st.composite
def node_cases(draw: st.DrawFn, method: str) -> NodeCase:
    n_nodes, ranks_per_node = draw(st.integers(1, 16)), draw(st.integers(1, 3))
    return NodeCase(
        method,
        tuple(draw(st.lists(st.one_of(st.integers(0, 5000), st.integers(0, 30)), min_size=1, max_size=5))),
        draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 64])),
        Topology(n_nodes * ranks_per_node, ranks_per_node),
        draw(st.integers(1, 3) if method == "device_per_stream" else st.integers(1, 40)),
        draw(st.integers(0, 2**63 - 1)),
        draw(st.integers(0, 70)),
    )


def n_regular_batches(plan: EpochPlan) -> int:
    """Count the batches, from the first on, that are whole and free of padding."""
    return max(0, (min(plan.stop, plan.order.n_samples) - plan.start) // plan.global_batch)


def whole_batches(plan: EpochPlan) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the node of every rank and the positions that the rank gets in whole batches."""
    ks = np.arange(min(n_regular_batches(plan), MOST_BATCHES))
    for rank in range(plan.topology.n_ranks):
        yield plan.topology.node_of(rank), plan.rank_batches(rank, ks)[0]


def readers(plan: EpochPlan) -> dict[int, set[int]]:
    """Return which nodes read each canonical node; of the stream with fewest, where streams have unequal numbers."""
    n_canonical_nodes = [sub_order.n_canonical_nodes for sub_order in plan.order.sub_orders]
    nodes: dict[int, set[int]] = {}
    for node, positions in whole_batches(plan):
        canonical_nodes = plan.order.locate(positions)[0] // (max(n_canonical_nodes) // min(n_canonical_nodes))
        for canonical_node in np.unique(canonical_nodes).tolist():
            nodes.setdefault(canonical_node, set()).add(node)
    return nodes


def missed(n_canonical_nodes: int) -> int:
    """Return the most, in C-th parts of a sample, by which a segment misses its even share of the first nodes."""
    residues, firsts = np.arange(n_canonical_nodes + 1), np.arange(n_canonical_nodes + 1)
    below = np.concatenate(
        [np.zeros((1, n_canonical_nodes + 1), np.int64), spread(n_canonical_nodes)[:, None] < firsts]
    ).cumsum(axis=0)
    errors = below * n_canonical_nodes - residues[:, None] * firsts
    return int((errors.max(axis=0) - errors.min(axis=0)).max())


def most_pairs(plan: EpochPlan) -> int:
    """Return how many (node, canonical node) pairs the law allows."""
    order, n_nodes = plan.order, plan.topology.n_nodes
    n_canonical_nodes, n_slots = (
        min(sub_order.n_canonical_nodes for sub_order in order.sub_orders),
        plan.global_batch // order.slot_samples,
    )
    if order.merge is None or (order.unit is not None and not order.deals_units):  # each batch is of one sub-order
        return (n_canonical_nodes + n_nodes - 1) * (1 if n_slots % n_canonical_nodes == 0 else 2)
    n_orders = sum(sub_order.n_samples > 0 for sub_order in order.sub_orders)
    return n_canonical_nodes + (n_nodes - 1) * (1 - (-2 * n_orders * missed(n_canonical_nodes) // n_slots))


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=150)
@given(data=st.data())
def test_nodes_keep_to_their_canonical_nodes(method: str, data: st.DataObject) -> None:
    """In whole batches, canonical nodes have few readers, counted from the first to the last node that reads each."""
    case = data.draw(node_cases(method))
    plan = case.plan()
    nodes = readers(plan)
    assert sum(max(mine) - min(mine) + 1 for mine in nodes.values()) <= most_pairs(plan)
    n_canonical_nodes, one_order = case.n_canonical_nodes, method in ("random", "stored", "per_stream")
    if one_order and plan.global_batch % n_canonical_nodes == 0 and n_canonical_nodes % plan.topology.n_nodes == 0:
        assert all(len(mine) == 1 for mine in nodes.values())
    if one_order:
        assert all(max(mine) - min(mine) == len(mine) - 1 for mine in nodes.values())


@pytest.mark.parametrize(
    ("case", "n_pairs"),
    [
        (NodeCase("random", (5000,), 4, Topology(3, 1), 4), 4 + 2),
        (NodeCase("per_stream", (5000, 900), 16, Topology(5, 1), 16), 16 + 4),
        (NodeCase("stratified", (70_000, 30_000, 20_000), 16, Topology(4, 1), 64), 16 + 2 * 3),
        (NodeCase("stratified", (70_000, 30_000, 20_000), 8, Topology(8, 1), 16), 8 + 2 * 7),
        (NodeCase("stored", (70_000, 30_000, 20_000), 4, Topology(3, 1), 4), 4 + 2),
        (NodeCase("device_per_stream", (70_000, 30_000, 20_000), 8, Topology(128, 16), 1), 8 + 2 * 7),
    ],
)
def test_no_smaller_number_of_readers_could_be_promised(case: NodeCase, n_pairs: int) -> None:
    """These cases have as many pairs as the law allows, so a tighter law would be wrong."""
    plan = case.plan()
    assert sum(map(len, readers(plan).values())) == n_pairs == most_pairs(plan)


def test_a_segment_misses_less_than_half_the_bits_of_its_share() -> None:
    """For 2 to 1,024 canonical nodes, every segment misses its share by less than `most_missed`."""
    for n_canonical_nodes in (1 << n_bits for n_bits in range(1, 11)):
        assert missed(n_canonical_nodes) < most_missed(n_canonical_nodes) * n_canonical_nodes


@settings(max_examples=100)
@given(data=st.data())
def test_no_canonical_node_is_read_unforeseen(data: st.DataObject) -> None:
    """A node reads only canonical nodes that are foreseen for it, of each sub-order."""
    plan = data.draw(st.sampled_from(METHODS).flatmap(node_cases)).plan()
    assume(n_regular_batches(plan))
    check_foresight(plan)


def check_foresight(plan: EpochPlan) -> None:
    order, size = plan.order, plan.global_batch // plan.order.slot_samples
    for node, positions in whole_batches(plan):
        foreseen = canonical_nodes_of_batches(order, plan.topology, node, plan.start, size, n_regular_batches(plan))
        sub_orders, own = order.find(positions)
        for number, sub_order in enumerate(order.sub_orders):
            assert np.isin(sub_order.grid.locate(own[sub_orders == number])[0], foreseen[number]).all()


def test_streams_with_few_canonical_nodes_move_those_of_the_others() -> None:
    """One stream of 8 canonical nodes beside ten of 2, all of whose units count as units of canonical nodes 0 and 4."""
    case = NodeCase("device_per_stream", (520, *[250] * 10), 8, Topology(512, 64), 1)
    plan = case.plan()
    assert [sub_order.n_canonical_nodes for sub_order in plan.order.sub_orders] == [8, *[2] * 10]
    check_foresight(plan)
