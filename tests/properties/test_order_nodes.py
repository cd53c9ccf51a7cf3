"""Law 6: the canonical nodes that a node reads are few and side by side, whatever the batching method."""

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
from streaming.order.nodes.assignment import lanes_of_batches

METHODS = ("random", "stored", "stratified", "per_stream", "device_per_stream")
MOST_BATCHES = 500


@dataclass(frozen=True)
class NodeCase:
    """Some streams, of one shard each, on some nodes; `stored` is `random` without shuffle."""

    method: str
    draws: tuple[int, ...]
    n_canonical_nodes: int
    world: Topology
    batch_size: int
    seed: int = 1
    start: int = 0

    def plan(self) -> EpochPlan:
        """What the nodes get."""
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


def whole_batches(plan: EpochPlan) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every node, and the positions that its ranks get in whole batches."""
    ks = np.arange(min(plan.n_regular_batches, MOST_BATCHES))
    for rank in range(plan.topology.n_ranks):
        yield plan.topology.node_of(rank), plan.rank_batches(rank, ks)[0]


def readers(plan: EpochPlan) -> dict[int, set[int]]:
    """Which nodes read each canonical node; where streams have unequally many, of the stream with fewest."""
    n_lanes = [part.grid.n_lanes for part in plan.order.parts]
    nodes: dict[int, set[int]] = {}
    for node, positions in whole_batches(plan):
        for lane in np.unique(plan.order.canonical_nodes(positions) // (max(n_lanes) // min(n_lanes))).tolist():
            nodes.setdefault(lane, set()).add(node)
    return nodes


def missed(n_lanes: int) -> int:
    """By how many C-th parts of a sample a stretch misses its even share of the first canonical nodes at most."""
    residues, firsts = np.arange(n_lanes + 1), np.arange(n_lanes + 1)
    below = np.concatenate([np.zeros((1, n_lanes + 1), np.int64), spread(n_lanes)[:, None] < firsts]).cumsum(axis=0)
    errors = below * n_lanes - residues[:, None] * firsts
    return int((errors.max(axis=0) - errors.min(axis=0)).max())


def most_pairs(plan: EpochPlan) -> int:
    """How many (node, canonical node) pairs there may be: the law."""
    order, n_nodes = plan.order, plan.topology.n_nodes
    n_lanes, n_slots = min(part.grid.n_lanes for part in order.parts), plan.global_batch // order.slot_samples
    if order.merge is None or (order.unit is not None and not order.deals_units):  # batches are of one order each
        return (n_lanes + n_nodes - 1) * (1 if n_slots % n_lanes == 0 else 2)
    n_orders = sum(part.n_samples > 0 for part in order.parts)
    return n_lanes + (n_nodes - 1) * (1 - (-2 * n_orders * missed(n_lanes) // n_slots))


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_nodes_keep_to_their_canonical_nodes(method: str, data: st.DataObject) -> None:
    """Counted from the first to the last node that reads it, all canonical nodes have few readers in whole batches."""
    case = data.draw(node_cases(method))
    plan = case.plan()
    nodes = readers(plan)
    assert sum(max(mine) - min(mine) + 1 for mine in nodes.values()) <= most_pairs(plan)
    n_lanes, one_order = case.n_canonical_nodes, method in ("random", "per_stream")
    if one_order and plan.global_batch % n_lanes == 0 and n_lanes % plan.topology.n_nodes == 0:
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
        (NodeCase("stored", (70_000, 30_000, 20_000), 8, Topology(8, 1), 16), 8 + 2 * 7),
        (NodeCase("device_per_stream", (70_000, 30_000, 20_000), 8, Topology(128, 16), 1), 8 + 2 * 7),
    ],
)
def test_no_smaller_number_of_readers_could_be_promised(case: NodeCase, n_pairs: int) -> None:
    """Here as many canonical nodes are read by two nodes as the law allows, so a tighter law would be wrong."""
    plan = case.plan()
    assert sum(map(len, readers(plan).values())) == n_pairs == most_pairs(plan)


def test_a_stretch_misses_less_than_half_the_bits_of_its_share() -> None:
    """`most_missed` bounds what a look at every stretch finds, for 2 to 1,024 canonical nodes."""
    for n_lanes in (1 << n_bits for n_bits in range(1, 11)):
        assert missed(n_lanes) < most_missed(n_lanes) * n_lanes


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_canonical_node_is_read_unforeseen(data: st.DataObject) -> None:
    """Each node reads, of each order, canonical nodes that are foreseen."""
    plan = data.draw(st.sampled_from(METHODS).flatmap(node_cases)).plan()
    assume(plan.n_regular_batches)
    check_foresight(plan)


def check_foresight(plan: EpochPlan) -> None:
    order, size = plan.order, plan.global_batch // plan.order.slot_samples
    for node, positions in whole_batches(plan):
        foreseen = lanes_of_batches(order, plan.topology, node, plan.start, size, plan.n_regular_batches)
        parts, own = order.find(positions)
        for number, part in enumerate(order.parts):
            assert np.isin(part.grid.locate(own[parts == number])[0], foreseen[number]).all()


def test_streams_with_few_canonical_nodes_move_those_of_the_others() -> None:
    """One stream of 8 canonical nodes beside ten of 2, whose units all count as of canonical nodes 0 and 4."""
    case = NodeCase("device_per_stream", (520, *[250] * 10), 8, Topology(512, 64), 1)
    plan = case.plan()
    assert [part.grid.n_lanes for part in plan.order.parts] == [8, *[2] * 10]
    check_foresight(plan)
