"""What an order means for hardware, against brute force; and the shuffle score: its ends, growth and evenness."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from streaming.order import Catalog, EpochOrder, EpochPlan, Explanation, OrderSpec, Topology, explain
from streaming.order.report.quality import shuffle_score

SHAPES = [(2000, 600), (300, 1000), (20, 500), (1, 5000)]


def _order(n_shards: int, rows: int, epoch: int = 0, **settings: Any) -> EpochOrder:
    spec = OrderSpec(**{"shuffle": True, **settings})
    return EpochOrder(spec, Catalog(np.full(n_shards, rows), np.array([n_shards])), epoch)


def _explained(order: EpochOrder, n_nodes: int, batch_size: int = 8, **options: Any) -> Explanation:
    return explain(order, Topology(2 * n_nodes, 2), batch_size, **options)


# --- the score


@pytest.mark.parametrize(("n_shards", "rows"), SHAPES)
def test_the_score_is_0_for_the_stored_order_and_1_for_a_full_shuffle(n_shards: int, rows: int) -> None:
    """Both ends of the scale, for many shards and few."""
    assert shuffle_score(_order(n_shards, rows, shuffle=False)).score < 0.01
    assert shuffle_score(_order(n_shards, rows, shuffle_algo="naive")).score > 0.97
    assert shuffle_score(_order(n_shards, rows, shuffle_block_size=n_shards * rows)).score > 0.97


@pytest.mark.parametrize(("n_shards", "rows", "n_canonical_nodes"), [(2000, 600, 64), (300, 1000, 1)])
def test_the_score_grows_with_the_block(n_shards: int, rows: int, n_canonical_nodes: int) -> None:
    """From less than one shard to the whole canonical node, and so do both components; 0.01 is left to chance."""
    blocks = [*(rows * 4**k // 4 for k in range(5)), n_shards * rows]
    orders = [
        _order(n_shards, rows, num_canonical_nodes=n_canonical_nodes, shuffle_block_size=block) for block in blocks
    ]
    scores = list(map(shuffle_score, orders))
    for smaller, larger in pairwise(scores):
        assert larger.spread >= smaller.spread
        assert larger.mixing >= smaller.mixing - 0.01
        assert larger.score >= smaller.score - 0.01
    assert scores[0].score < 0.3
    assert scores[-1].score > 0.97
    without = shuffle_score(_order(n_shards, rows, num_canonical_nodes=n_canonical_nodes, shuffle_algo="py1s"))
    assert without.score <= scores[0].score


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_the_ends_of_an_epoch_are_mixed_as_well_as_its_middle(epoch: int) -> None:
    """300 shards of 1,000 samples, a block of 20 shards: no place is 10 % away from the mean."""
    found = shuffle_score(_order(300, 1000, epoch, num_canonical_nodes=1, shuffle_block_size=20_000))
    assert max(abs(place / found.mixing - 1) for place in found.mixing_at) < 0.1


def test_streams_that_are_merged_evenly_without_shuffle_count_as_some_mixing() -> None:
    """Two streams that take turns mix more than the stored order of one, and far less than a shuffle."""
    catalog = Catalog(np.full(100, 200), np.array([50, 50]))
    stored, merged = (
        shuffle_score(EpochOrder(OrderSpec(batching_method=m), catalog, 0)) for m in ("random", "stratified")
    )
    assert stored.score == 0 < merged.score < 0.1


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 17, 64])
def test_tiny_epochs_have_a_score(n: int) -> None:
    """The score says little then, but it exists and is in range."""
    for settings in ({}, {"shuffle": False}, {"shuffle_algo": "naive"}):
        assert 0 <= shuffle_score(_order(1, n, **settings)).score <= 1


# --- hardware


def _needed_shards(plan: EpochPlan, ks: range) -> list[set[int]]:
    """Return for each node the shards that its ranks read in these batches, by a look at every sample."""
    order, needed = plan.order, []
    reader = order.reader()
    for node in range(plan.topology.n_nodes):
        positions = np.concatenate([plan.node_batch(k, node) for k in ks])
        shards, _ = order.catalog.locate(reader.ids(plan.source(positions)))
        needed.append(set(shards.tolist()))
    return needed


@pytest.mark.parametrize(
    "settings",
    [{}, {"shuffle_algo": "py1s"}, {"shuffle_algo": "naive"}, {"shuffle": False}, {"num_canonical_nodes": 6}],
    ids=str,
)
@pytest.mark.parametrize("n_nodes", [1, 2, 3, 5, 8, 20])
def test_downloads_are_what_every_sample_asked_for_would_need(n_nodes: int, settings: dict[str, Any]) -> None:
    """Against every sample of all whole batches."""
    order = _order(64, 120, **settings)
    plan = EpochPlan(order, Topology(2 * n_nodes, 2), 8)
    needed = _needed_shards(plan, range(order.n_samples // plan.global_batch))
    found = _explained(order, n_nodes)
    assert found.downloads_per_shard == pytest.approx(sum(map(len, needed)) / 64, rel=0.03)
    assert found.node_downloads == pytest.approx([len(shards) for shards in needed], rel=0.1, abs=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"batching_method": "stratified"},
        {"batching_method": "per_stream"},
        {"batching_method": "device_per_stream", "shuffle_algo": "py1br"},
        {"batching_method": "stratified", "shuffle_algo": "naive"},
        {"batching_method": "stratified", "shuffle": False},
        {"shuffle": False},
        {"shuffle_algo": "py2s"},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_nodes", [2, 3, 8])
def test_downloads_of_several_streams(n_nodes: int, settings: dict[str, Any]) -> None:
    """Against every sample of all whole batches: two streams, one of which is read 1.4 times."""
    catalog = Catalog(np.full(60, 150), np.array([40, 20]))
    topology = Topology(4 * n_nodes, 4, replication=2)
    unit = {"per_stream": 16 * n_nodes, "device_per_stream": 8}.get(settings.get("batching_method", ""))
    spec = OrderSpec(**{"shuffle": True, "num_canonical_nodes": 8, "shuffle_block_size": 300, **settings})
    order = EpochOrder(spec, catalog, 0, np.array([6000, 4200]), unit)
    plan = EpochPlan(order, topology, 8)
    needed = _needed_shards(plan, range(order.n_samples // plan.global_batch))
    found = explain(order, topology, 8)
    assert found.downloads_per_shard == pytest.approx(sum(map(len, needed)) / 60, rel=0.05)
    assert [share.n_left_out for share in found.streams] == order.left_out.tolist()
    assert 0 < found.shards_in_use <= found.most_shards_in_use <= 60
    assert 0 <= found.shuffle_quality <= 1


def test_shards_that_a_partial_pass_leaves_out_are_not_downloaded() -> None:
    """A fifth of a stream, in picks of whole shards, needs a fifth of its shards."""
    order = EpochOrder(
        OrderSpec(shuffle=True, sampling_granularity=100),
        Catalog(np.full(50, 100), np.array([50])),
        0,
        np.array([1000]),
    )
    found = _explained(order, 1)
    assert (found.node_downloads, found.downloads_per_shard) == ((10.0,), 1.0)


def test_each_shard_is_downloaded_once_where_canonical_nodes_suffice() -> None:
    """If nodes divide canonical nodes, and these divide shards, downloads are exactly 1 and bytes are exact."""
    order = _order(128, 40, num_canonical_nodes=16, shuffle_block_size=100)
    sizes = np.arange(128, dtype=np.int64) + 1000
    for n_nodes in (1, 2, 4, 8, 16):
        found = _explained(order, n_nodes, shard_bytes=sizes)
        assert found.downloads_per_shard == 1.0
        assert found.warning is None
        needed = _needed_shards(EpochPlan(order, Topology(2 * n_nodes, 2), 8), range(128 * 40 // (16 * n_nodes)))
        assert found.node_download_bytes == tuple(int(sizes[list(shards)].sum()) for shards in needed)


def test_shards_in_use_are_those_between_their_first_and_last_sample() -> None:
    """Against the order itself, on one node, for a block of three shards and for none."""
    for settings in ({"shuffle_block_size": 300}, {"shuffle_algo": "py1s"}, {"shuffle_algo": "naive"}):
        order = _order(100, 100, num_canonical_nodes=4, **settings)
        shards, _ = order.catalog.locate(order.take(0, order.n_samples))
        first = np.unique(shards, return_index=True)[1]
        last = order.n_samples - 1 - np.unique(shards[::-1], return_index=True)[1]
        # A shard across the seam of the ring is used at both ends of the epoch only, and is counted so.
        inner = last - first < order.n_samples // 2 if order.uses_block else np.ones(100, np.bool_)
        in_use = float((last - first)[inner].sum()) / order.n_samples * 100 / inner.sum()
        assert _explained(order, 1).shards_in_use == pytest.approx(in_use, rel=0.1)


def test_the_cache_needed_is_the_working_set_of_the_design() -> None:
    """C (1 + 2 block / z) / P shards, if that is fewer than all; in bytes, for a mean size."""
    order = _order(4000, 50, num_canonical_nodes=16, shuffle_block_size=200)
    for n_nodes in (1, 4, 16):
        found = _explained(order, n_nodes, shard_bytes=1000.0)
        assert found.cache_shards == pytest.approx(16 * (1 + 2 * 4) / n_nodes, rel=0.02)
        assert found.cache_bytes == pytest.approx(found.cache_shards * 1000, rel=0.001)


@pytest.mark.parametrize(("remainder", "padding", "dropped"), [("pad", 2, 0), ("drop", 0, 1), ("exact", 0, 0)])
def test_batches_and_padding_are_those_of_the_plan(remainder: str, padding: int, dropped: int) -> None:
    """1,000 samples on 3 ranks."""
    found = explain(_order(10, 100), Topology(3, 1), 7, remainder=remainder)
    assert (found.n_batches, found.n_padding, found.n_dropped) == (48, padding, dropped)


def test_streams_are_listed_with_what_they_give() -> None:
    """One stream is read three times."""
    catalog = Catalog(np.array([10, 20, 30]), np.array([2, 1]))
    order = EpochOrder(OrderSpec(shuffle=True), catalog, 0, np.array([90, 30]))
    first, second = _explained(order, 1).streams
    assert (first.n_stored, first.n_drawn, first.repeats) == (30, 90, 3.0)
    assert (second.n_stored, second.n_drawn, second.repeats) == (30, 30, 1.0)


@pytest.mark.parametrize("n_nodes", [128, 100])
def test_the_warning_names_a_power_of_two_that_helps(n_nodes: int) -> None:
    """With that number of canonical nodes, downloads fall to what the warning says."""
    found = _explained(_order(20_000, 50), n_nodes)
    assert found.warning is not None
    better = int(found.warning.partition("num_canonical_nodes=")[2].partition(" ")[0])
    assert better.bit_count() == 1
    assert f"would give {1.0 if n_nodes == 128 else 1.05:.2f}"[:-1] in found.warning
    after = _explained(_order(20_000, 50, num_canonical_nodes=better), n_nodes)
    assert after.downloads_per_shard < 1.1 < found.downloads_per_shard
    assert after.warning is None


def test_a_warning_without_remedy_gives_no_advice() -> None:
    """Under `naive` every node needs every shard; and four shards are too few for a hundred nodes."""
    for order in (_order(200, 500, shuffle_algo="naive"), _order(4, 5000, num_canonical_nodes=64)):
        warning = _explained(order, 100).warning
        assert warning is not None
        assert "num_canonical_nodes" not in warning


@pytest.mark.parametrize("algorithm", ["py1e", "naive"])
def test_a_billion_samples_are_explained_in_little_memory(algorithm: str) -> None:
    """No array of the epoch's length is made, which would take 8 GB for 10⁹ samples."""
    tracemalloc.start()
    try:
        found = _explained(_order(100_000, 10_000, shuffle_algo=algorithm), 3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.n_samples == 10**9
    assert peak < 100e6


def test_the_text_says_the_numbers_in_words() -> None:
    """The whole text for one small case."""
    order = _order(128, 50, num_canonical_nodes=2, shuffle_block_size=100)
    lines = str(_explained(order, 4, shard_bytes=1 << 20)).splitlines()
    assert lines[0] == "epoch: 6,400 samples in 100 batches of 8 on each of 8 ranks (4 nodes)"
    assert lines[1] == "stream 0: 6,400 of its 6,400 samples an epoch, each once; 100 % of the epoch"
    assert lines[2] == "order: py1e, 2 canonical nodes, a block of 100 samples (2.0 shards) in each"
    assert lines[3].startswith("shuffle quality: 0.")
    assert lines[4] == "shards in use at once on a node: about 3, at most 4"
    assert lines[5] == "downloads of each shard over all nodes: 2.00 an epoch; at most 64.0 MiB on a node"
    assert lines[6] == "cache that a node needs, to fetch none twice: about 5 shards, 5.0 MiB"
    assert lines[7].startswith(
        "warning: 4 nodes read 2 canonical nodes, so each shard is downloaded 2.0 times an epoch"
    )


def test_an_epoch_without_samples_is_explained() -> None:
    """A catalog without shards, and one of empty shards."""
    for catalog in (
        Catalog(np.zeros(0, np.int64), np.zeros(0, np.int64)),
        Catalog(np.zeros(3, np.int64), np.array([3])),
    ):
        for shuffle in (True, False):
            found = explain(EpochOrder(OrderSpec(shuffle=shuffle), catalog, 0), Topology(4, 2), 8, shard_bytes=10)
            assert (found.n_samples, found.n_batches, found.downloads_per_shard) == (0, 0, 0.0)
            assert str(found).startswith("epoch: 0 samples in 0 batches")
