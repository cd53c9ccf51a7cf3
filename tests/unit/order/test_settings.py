"""The checks of specs, catalogs, topologies and draws; and the defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streaming.errors import OptionError, SampleIndexError
from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology, WorkerReader

CATALOG = Catalog(np.array([10, 0, 5]), np.array([2, 1]))


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": -1},
        {"seed": 1.5},
        {"seed": True},
        {"seed": 2**63},
        {"shuffle": "yes"},
        {"num_canonical_nodes": 0},
        {"num_canonical_nodes": 2**21},
        {"shuffle_block_size": 0},
        {"sampling_granularity": 0},
        {"shuffle_algo": "py9"},
        {"batching_method": "odd"},
        {"sampling_method": "odd"},
    ],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, Any]) -> None:
    """The message names the setting as the user does."""
    name = next(iter(settings)).replace("seed", "shuffle_seed")
    with pytest.raises(OptionError, match=name):
        OrderSpec(**settings)


def test_specs_keep_plain_numbers() -> None:
    """numpy's whole numbers become ints, so that specs compare and serialise alike."""
    spec = OrderSpec(seed=np.int64(3), shuffle=np.True_, num_canonical_nodes=np.int32(2))  # type: ignore[arg-type]
    assert spec == OrderSpec(seed=3, shuffle=True, num_canonical_nodes=2)
    assert type(spec.seed) is int
    assert spec.shuffle is True


@pytest.mark.parametrize(
    ("sizes", "per_stream"),
    [([1, -1], [2]), ([1, 2], [1]), ([1.5], [1]), ([[1]], [1]), ([2**31 + 1], [1]), ([1], [-1, 2])],
)
def test_impossible_catalogs_are_refused(sizes: list[Any], per_stream: list[int]) -> None:
    """Negative, fractional, huge, or not adding up."""
    with pytest.raises(OptionError):
        Catalog(np.array(sizes), np.array(per_stream))


def test_a_catalog_finds_samples_behind_empty_shards() -> None:
    """Ids count through the shards; an empty shard has none."""
    catalog = Catalog(np.array([0, 3, 0, 0, 2, 0]), np.array([3, 0, 3]))
    shards, rows = catalog.locate(np.arange(5))
    assert shards.tolist() == [1, 1, 1, 4, 4]
    assert rows.tolist() == [0, 1, 2, 0, 1]
    assert catalog.samples_per_stream.tolist() == [3, 0, 2]
    assert catalog.stream_of_shard.tolist() == [0, 0, 0, 2, 2, 2]
    assert catalog.n_samples == 5
    with pytest.raises(ValueError, match="read-only"):
        catalog.shard_sizes[0] = 1


def test_topologies() -> None:
    """Nodes are whole. If nodes are uneven or unknown, each rank is a node."""
    assert Topology(6, 3).n_nodes == 2
    assert Topology(6, 3).node_of(4) == 1
    assert list(Topology(6, 3).ranks_of(1)) == [3, 4, 5]
    assert Topology.of(6, 4) == Topology.of(6) == Topology(6, 1)
    for n_ranks, per_node, replication in ((0, 1, 1), (4, 0, 1), (4, 3, 1), (4, 2, 0)):
        with pytest.raises(OptionError):
            Topology(n_ranks, per_node, replication)
    with pytest.raises(OptionError, match="replication=3"):
        Topology.of(8, 4, replication=3)


@pytest.mark.parametrize(
    ("n_ranks", "per_node", "replication", "nodes"),
    [
        (8, 4, 2, [range(4), range(4, 8)]),
        (8, 4, 4, [range(4), range(4, 8)]),
        (8, 2, 4, [range(4), range(4, 8)]),
        (8, 1, 2, [range(2), range(2, 4), range(4, 6), range(6, 8)]),
        (12, 6, 4, [range(4), range(4, 8), range(8, 12)]),
    ],
)
def test_groups_of_ranks_that_get_the_same(n_ranks: int, per_node: int, replication: int, nodes: list[range]) -> None:
    """A node consists of whole groups; a group that does not fit into a machine is a node."""
    topology = Topology(n_ranks, per_node, replication)
    assert topology.n_groups * replication == n_ranks
    assert [topology.ranks_of(node) for node in range(topology.n_nodes)] == nodes
    for node, ranks in enumerate(nodes):
        assert [topology.node_of(rank) for rank in ranks] == [node] * len(ranks)
        assert [topology.group_of(rank) in topology.groups_of(node) for rank in ranks] == [True] * len(ranks)


def test_draws() -> None:
    """A stream with samples can give any number; draws from an empty stream are refused."""
    assert EpochOrder(OrderSpec(), CATALOG, 0, np.array([20, 0])).n_samples == 20
    assert EpochOrder(OrderSpec(), CATALOG, 0, np.array([15, 3])).n_samples == 18
    empty = Catalog(np.array([10, 0]), np.array([1, 1]))
    for draws in ([-1, 5], [1], [10, 3]):
        with pytest.raises(OptionError):
            EpochOrder(OrderSpec(), empty, 0, np.array(draws))


def test_plans_and_readers_check_their_arguments() -> None:
    """A rank, batch or position that does not exist is an error, never a wrong sample."""
    order = EpochOrder(OrderSpec(), CATALOG, 0)
    plan = EpochPlan(order, Topology(2, 2), 3)
    for batch_size, start, remainder in ((0, 0, "pad"), (1, -1, "pad"), (1, 0, "keep")):
        with pytest.raises(OptionError):
            EpochPlan(order, Topology(2, 2), batch_size, start, remainder)
    with pytest.raises(OptionError):
        plan.batch_positions(plan.n_batches, 0)
    with pytest.raises(OptionError):
        plan.batch_positions(0, 2)
    for rank, worker, n_workers in ((2, 0, 1), (0, 1, 1), (0, 0, 0)):
        with pytest.raises(OptionError):
            WorkerReader(plan, rank, worker, n_workers)
    with pytest.raises(SampleIndexError):
        order.take(0, 16)
    with pytest.raises(SampleIndexError):
        order.take(-1, 3)
    with pytest.raises(OptionError):
        EpochOrder(OrderSpec(), CATALOG, -1)


def test_units_are_checked() -> None:
    """Where streams take turns by units, order, batches and cursor must agree on the unit."""
    for method in ("per_stream", "device_per_stream"):
        spec = OrderSpec(batching_method=method)
        for unit in (None, 0, 1.5, True):
            with pytest.raises(OptionError, match="unit"):
                EpochOrder(spec, CATALOG, 0, unit=unit)  # type: ignore[arg-type]
    whole = EpochOrder(OrderSpec(batching_method="per_stream"), CATALOG, 0, unit=4)
    each = EpochOrder(OrderSpec(batching_method="device_per_stream"), CATALOG, 0, unit=4)
    assert whole.left_out.tolist() == each.left_out.tolist() == EpochPlan(whole, Topology(2, 1), 2).left_out.tolist()
    assert whole.left_out.tolist() == [2, 1]
    assert EpochPlan(each, Topology(2, 1), 4, start=4).n_batches == 1
    for order, batch_size, start in ((whole, 4, 0), (each, 2, 0), (whole, 2, 2), (each, 4, 2)):
        with pytest.raises(OptionError, match=r"batch.* of|batch is"):
            EpochPlan(order, Topology(2, 1), batch_size, start)
    assert EpochOrder(OrderSpec(), CATALOG, 0, unit=4).left_out.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("sizes", "n_canonical_nodes", "block"),
    [
        ([], 1, 1 << 18),
        ([100], 1, 1 << 18),
        ([100] * 7, 1, 1 << 18),
        ([100] * 8, 2, 1 << 17),
        ([100] * 255, 32, 1 << 13),
        ([100] * 256, 64, 4096),
        ([100] * 100_000, 64, 4096),
        ([10_000] * 1000, 64, 40_000),
        ([1] * 1000 + [100_000], 1, 1 << 19),
    ],
)
def test_defaults_follow_the_data(sizes: list[int], n_canonical_nodes: int, block: int) -> None:
    """Canonical nodes from the effective number of shards, the block from their typical length."""
    catalog = Catalog(np.array(sizes, np.int64), np.array([len(sizes)]))
    order = EpochOrder(OrderSpec(shuffle=True), catalog, 0)
    assert order.n_canonical_nodes == n_canonical_nodes
    z = sum(size * size for size in sizes) * 4 // max(1, sum(sizes))
    assert order.shuffle_block_size == max((1 << 18) // n_canonical_nodes, z)
    assert order.shuffle_block_size == block or sizes[-1:] == [100_000]
    assert EpochOrder(OrderSpec(), catalog, 0).n_canonical_nodes == 1


def test_pieces_of_long_shards_are_the_runs_that_defaults_see() -> None:
    """The default block counts runs of at most 2**20 rows. A dataset of impossibly many runs is refused at once."""
    order = EpochOrder(OrderSpec(shuffle=True), Catalog(np.array([2**31, 7]), np.array([2])), 0)
    assert order.shuffle_block_size == 4 * (2048 * 2**40 + 49) // (2**31 + 7)
    with pytest.raises(OptionError, match="runs"):
        EpochOrder(OrderSpec(shuffle=True), Catalog(np.full(100_000, 2**31), np.array([100_000])), 0)


def test_windows_beyond_the_limits_are_refused() -> None:
    """A canonical node of 2**42 samples, or a window of 2**31, does not fit a key."""
    many = Catalog(np.full(2048, 2**31), np.array([2048]))
    with pytest.raises(OptionError, match="num_canonical_nodes"):
        EpochOrder(OrderSpec(shuffle=True, num_canonical_nodes=1), many, 0)
    with pytest.raises(OptionError, match="shuffle_block_size"):
        EpochOrder(OrderSpec(shuffle=True, num_canonical_nodes=64, shuffle_block_size=2**31), many, 0)
    wide = EpochOrder(OrderSpec(shuffle=True, num_canonical_nodes=64, shuffle_block_size=1), many, 0)
    assert wide.n_samples == 2**42
    assert wide.take(2**41, 2**41 + 1).size == 1
