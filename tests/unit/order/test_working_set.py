"""The shards that a node needs at once, and those that it reads sparsely: closed forms against brute force."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology, WorkingSet, sparsely_read, working_set


def _order(sizes: list[int], draws: int | None = None, **chosen: Any) -> EpochOrder:
    catalog = Catalog(np.array(sizes), np.array([len(sizes)]))
    spec = OrderSpec(**{"shuffle": True, **chosen})
    return EpochOrder(spec, catalog, 0, None if draws is None else np.array([draws]))


# --- room


def _fetches_by_best_eviction(batches: list[list[int]], room: int) -> int:
    """Count the fetches if the shard that is needed last is evicted first. `batches`: shards of each, in order."""
    visits = [shard for batch in batches for shard in batch]
    next_use: list[float] = [math.inf] * len(visits)
    seen: dict[int, int] = {}
    for i in range(len(visits) - 1, -1, -1):
        next_use[i] = seen.get(visits[i], math.inf)
        seen[visits[i]] = i
    held: dict[int, float] = {}
    n_fetches = 0
    for shard, after in zip(visits, next_use):
        if shard not in held:
            n_fetches += 1
            if len(held) >= room:
                del held[max(held, key=held.__getitem__)]
        held[shard] = after
    return n_fetches


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.85, 1.5])
@pytest.mark.parametrize(("n_shards", "rows", "block"), [(100, 200, 4000), (60, 500, 30_000)])
def test_expected_fetches_are_those_of_the_best_eviction(n_shards: int, rows: int, block: int, share: float) -> None:
    """Within a quarter of what eviction by next use does if the cache is too small; one if it is not."""
    order = _order([rows] * n_shards, num_canonical_nodes=2, shuffle_block_size=block)
    plan = EpochPlan(order, Topology(1, 1), 32)
    needed = working_set(plan)
    ids = order.take(0, order.n_samples)
    batches = [list(dict.fromkeys((ids[k : k + 32] // rows).tolist())) for k in range(0, len(ids), 32)]
    room = max(1, int(share * needed.in_use))
    found = _fetches_by_best_eviction(batches, room) / n_shards
    expected = needed.fetches_per_shard(room)
    assert 0.75 * found <= expected <= 1.25 * found


def test_a_cache_of_the_working_set_fetches_nothing_twice() -> None:
    """The promise of `shards`, by brute force."""
    order = _order([200] * 100, num_canonical_nodes=2, shuffle_block_size=4000)
    needed = working_set(EpochPlan(order, Topology(1, 1), 32))
    ids = order.take(0, order.n_samples)
    batches = [list(dict.fromkeys((ids[k : k + 32] // 200).tolist())) for k in range(0, len(ids), 32)]
    assert _fetches_by_best_eviction(batches, math.ceil(needed.shards)) == 100
    assert needed.fetches_per_shard(needed.shards) == 1


@given(
    in_use=st.floats(1, 1e6),
    room=st.floats(0.1, 1e6),
    more=st.floats(1, 10),
    visits=st.floats(1, 1e4),
    part=st.floats(1e-4, 1),
)
def test_more_room_never_costs_more(in_use: float, room: float, more: float, visits: float, part: float) -> None:
    """From one fetch of each shard to one at every visit."""
    needed = WorkingSet(in_use, 2 * in_use, visits / part, visits)
    less, enough = needed.fetches_per_shard(room), needed.fetches_per_shard(room * more)
    assert 1 <= enough <= less + 1e-9 <= visits + 1e-6


# --- shards that are read sparsely


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=12),
    passes=st.integers(1, 3),
    nodes=st.sampled_from([1, 2, 4, 32]),
)
def test_whole_passes_read_no_shard_sparsely(sizes: list[int], passes: int, nodes: int) -> None:
    """Whatever the number of nodes, every shard is needed whole."""
    if sum(sizes):
        assert (
            sparsely_read(_order(sizes, passes * sum(sizes)), Topology(nodes, 1), max_share=1 / 16, max_rows=500)
            is None
        )


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=12),
    share=st.floats(0.001, 2.5),
    granularity=st.sampled_from([1, 7, 100]),
)
@settings(max_examples=60)
def test_sparsely_read_shards_are_those_shards_of_which_a_node_needs_less_than_a_sixteenth(
    sizes: list[int], share: float, granularity: int
) -> None:
    """Against a count of all samples of the epoch."""
    n = max(1, int(share * sum(sizes)))
    if not sum(sizes):
        return
    order = _order(sizes, n, sampling_granularity=granularity)
    shards, _ = order.catalog.locate(order.take(0, order.n_samples))
    counts = Counter(shards.tolist())
    expected = [0 < counts[shard] < 1 / 16 * size for shard, size in enumerate(sizes)]
    found = sparsely_read(order, Topology(1, 1), max_share=1 / 16, max_rows=500)
    assert (found if found is not None else np.zeros(len(sizes), bool)).tolist() == expected


def test_nodes_that_share_a_canonical_node_need_less_of_its_shards() -> None:
    """A tenth of each shard is drawn, in two canonical nodes. One of two nodes needs all of it, one of four half."""
    order = _order([1000] * 40, 4000, num_canonical_nodes=2)
    assert sparsely_read(order, Topology(1, 1), max_share=1 / 16, max_rows=500) is None
    assert sparsely_read(order, Topology(2, 1), max_share=1 / 16, max_rows=500) is None
    found = sparsely_read(order, Topology(4, 1), max_share=1 / 16, max_rows=500)
    assert found is not None
    assert found.all()


def test_a_shard_of_which_many_samples_are_needed_is_not_read_sparsely() -> None:
    """One sample in a hundred is few, but a thousand requests are too many."""
    assert sparsely_read(_order([100_000] * 4, 4000), Topology(1, 1), max_share=1 / 16, max_rows=500) is None
