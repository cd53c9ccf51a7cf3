"""States: round trips, and which are refused, with which message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streaming.errors import StateError
from streaming.order import Catalog, Cursor, EpochOrder, OrderSpec, load_state, save_state

SPEC = OrderSpec(seed=7, shuffle=True)
CATALOG = Catalog(np.array([100, 50, 70]), np.array([2, 1]))


def order(spec: OrderSpec = SPEC, catalog: Catalog = CATALOG, draws: list[int] | None = None) -> EpochOrder:
    return EpochOrder(spec, catalog, 0, None if draws is None else np.array(draws))


def state(cursor: Cursor, saved_by: EpochOrder | None = None) -> dict[str, Any]:
    return save_state(saved_by or order(), cursor, initial_physical_nodes=2)


@pytest.mark.parametrize("cursor", [Cursor(-1, 0), Cursor(0, 0), Cursor(3, 17), Cursor(3, 220), Cursor(3, 999)])
def test_saving_what_was_loaded_gives_the_same_state(cursor: Cursor) -> None:
    """A round trip through JSON is the identity, wherever training stands."""
    saved = state(cursor)
    assert json.loads(json.dumps(saved)) == saved
    loaded = load_state(json.loads(json.dumps(saved)), order())
    assert loaded == cursor
    assert state(loaded) == saved == state(cursor)


def test_a_state_has_the_predecessors_keys_and_stays_small() -> None:
    """Under 1 KiB, whatever the number of shards and streams."""
    catalog = Catalog(np.full(100_000, 1000), np.full(1000, 100))
    spec = OrderSpec(seed=2**63 - 1, shuffle=True, num_canonical_nodes=1 << 20, shuffle_block_size=2**30)
    saved = state(Cursor(10**12, 2**62), order(spec, catalog))
    keys = {"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes"}
    assert keys | {"version", "fingerprint"} == set(saved)
    assert len(json.dumps(saved)) < 1024


@pytest.mark.parametrize(
    ("other", "field", "saved", "present"),
    [
        (order(replace(SPEC, seed=8)), "shuffle_seed", "7", "8"),
        (order(replace(SPEC, num_canonical_nodes=2)), "num_canonical_nodes", "1", "2"),
        (order(replace(SPEC, shuffle=False)), "shuffle_algo", "'py1e'", "None"),
        (order(replace(SPEC, shuffle_algo="naive")), "shuffle_algo", "'py1e'", "'naive'"),
        (order(replace(SPEC, shuffle_block_size=5)), "shuffle_block_size", "262144", "5"),
        (order(draws=[300, 70]), "weights", "'", "'"),
        (order(draws=[151, 69]), "weights", "'", "'"),
        (order(replace(SPEC, batching_method="stratified")), "batching_method", "'random'", "'stratified'"),
        (order(replace(SPEC, sampling_method="fixed")), "sampling_method", "'balanced'", "'fixed'"),
        (order(replace(SPEC, sampling_granularity=2)), "sampling_granularity", "1", "2"),
        (order(catalog=Catalog(np.array([100, 50, 71]), np.array([2, 1]))), "samples", "220", "221"),
        (order(catalog=Catalog(np.array([50, 100, 70]), np.array([2, 1]))), "shard_sizes", "'", "'"),
        (order(catalog=Catalog(np.array([100, 50, 70]), np.array([3]))), "streams", "2", "1"),
    ],
)
def test_a_state_of_another_order_is_refused_by_name(other: EpochOrder, field: str, saved: str, present: str) -> None:
    """Each difference is named with both values. `accept_other_order` takes the cursor all the same."""
    with pytest.raises(StateError, match=f"{field}: saved {saved}.*, now {present}"):
        load_state(state(Cursor(1, 30)), other)
    assert load_state(state(Cursor(1, 30)), other, accept_other_order=True) == Cursor(1, 30)


def test_settings_without_effect_may_change() -> None:
    """`py1s` has no block, and without `shuffle` the algorithm has no effect."""
    for one, two in [
        (
            OrderSpec(shuffle=True, shuffle_algo="py1s"),
            OrderSpec(shuffle=True, shuffle_algo="py1s", shuffle_block_size=9),
        ),
        (OrderSpec(), OrderSpec(shuffle_algo="naive", shuffle_block_size=9)),
    ]:
        assert load_state(state(Cursor(1, 30), order(one)), order(two)) == Cursor(1, 30)


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
def test_a_state_records_the_unit_by_which_streams_take_turns(method: str) -> None:
    """Resuming with another unit is refused by name. Other methods have no unit."""
    spec = replace(SPEC, batching_method=method)
    eight, four = (EpochOrder(spec, CATALOG, 0, unit=unit) for unit in (8, 4))
    assert load_state(state(Cursor(1, 16), eight), eight) == Cursor(1, 16)
    with pytest.raises(StateError, match=r"unit: saved 8, now 4"):
        load_state(state(Cursor(1, 16), eight), four)
    assert len(json.dumps(state(Cursor(10**12, 2**62), eight))) < 1024
    assert "unit" not in state(Cursor(1, 16))["fingerprint"]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("draws", [[150, 70], [150, 0]])
def test_a_state_of_version_1_loads_unless_its_order_is_gone(shuffle: bool, method: str, draws: list[int]) -> None:
    """Only in mid-epoch, and only where several streams took turns without shuffle and now follow each other."""
    spec = OrderSpec(shuffle=shuffle, batching_method=method)
    present = EpochOrder(spec, CATALOG, 0, np.array(draws), 10)
    within, between = (state(Cursor(2, n), present) | {"version": 1} for n in (40, 0))
    assert load_state(between, present) == Cursor(2, 0)
    if not shuffle and method == "random" and draws[1]:
        with pytest.raises(StateError, match=r"version 1.*sample_in_epoch=40.*accept_other_order=True"):
            load_state(within, present)
    else:
        assert load_state(within, present) == Cursor(2, 40)
    assert load_state(within, present, accept_other_order=True) == Cursor(2, 40)


def test_a_state_belongs_to_one_composition() -> None:
    """Proportional, exact, and exact of other numbers are three orders; batch sizes of equal shares are one."""
    catalog = Catalog(np.array([90, 30]), np.array([1, 1]))
    exact = replace(SPEC, batching_method="stratified", batch_composition="exact")
    four, eight, ten = (EpochOrder(exact, catalog, 0, unit=unit) for unit in (4, 8, 10))
    proportional = EpochOrder(replace(SPEC, batching_method="stratified"), catalog, 0)
    assert load_state(state(Cursor(1, 16), four), eight) == Cursor(1, 16)
    for saved, present, named in (
        (four, proportional, "saved 'exact 3:1', now 'proportional'"),
        (proportional, four, "saved 'proportional', now 'exact 3:1'"),
        (four, ten, "saved 'exact 3:1', now 'exact 7:3'"),
    ):
        with pytest.raises(StateError, match=f"batch_composition: {named}"):
            load_state(state(Cursor(1, 16), saved), present)
    of_version_1 = state(Cursor(1, 16), proportional) | {"version": 1}
    del of_version_1["fingerprint"]["batch_composition"]
    assert load_state(of_version_1, proportional) == Cursor(1, 16)
    with pytest.raises(StateError, match="batch_composition: saved 'proportional', now 'exact 3:1'"):
        load_state(of_version_1, four)


def test_a_state_of_a_composition_stays_small() -> None:
    """Under 1 KiB with a thousand streams."""
    spec = OrderSpec(seed=2**63 - 1, shuffle=True, batching_method="stratified", batch_composition="exact")
    sizes = np.arange(1000, 2000)
    many = EpochOrder(spec, Catalog(sizes, np.ones(1000, np.int64)), 0, unit=1 << 20)
    assert len(json.dumps(state(Cursor(10**12, 2**62), many))) < 1024


def predecessor(**changes: Any) -> dict[str, Any]:
    return {
        "epoch": 2,
        "sample_in_epoch": 0,
        "num_canonical_nodes": 128,
        "shuffle_seed": 7,
        "initial_physical_nodes": None,
    } | changes


def test_a_predecessors_state_loads_between_epochs() -> None:
    """Its order differs from ours, which matters inside an epoch but not between epochs."""
    assert load_state(predecessor(), order()) == Cursor(2, 0)
    assert load_state(predecessor(sample_in_epoch=220), order()).normalised(220) == Cursor(3, 0)
    with pytest.raises(StateError, match=r"accept_other_order=True"):
        load_state(predecessor(sample_in_epoch=10), order())
    assert load_state(predecessor(sample_in_epoch=10), order(), accept_other_order=True) == Cursor(2, 10)
    with pytest.raises(StateError, match="shuffle_seed: saved 9, now 7"):
        load_state(predecessor(shuffle_seed=9), order())


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: None,
        lambda s: [1],
        lambda s: {},
        lambda s: s | {"epoch": "1"},
        lambda s: s | {"epoch": True},
        lambda s: s | {"epoch": -2},
        lambda s: s | {"epoch": 1.0},
        lambda s: s | {"sample_in_epoch": -1},
        lambda s: s | {"epoch": -1, "sample_in_epoch": 1},
        lambda s: s | {"version": 0},
        lambda s: s | {"version": 3},
        lambda s: s | {"version": None},
        lambda s: s | {"fingerprint": None},
        lambda s: s | {"fingerprint": {}},
        lambda s: s | {"initial_physical_nodes": "x"},
        lambda s: {k: v for k, v in s.items() if k != "sample_in_epoch"},
        lambda s: {k: v for k, v in s.items() if k != "shuffle_seed"},
        lambda s: {k: v for k, v in s.items() if k != "fingerprint"},
    ],
)
def test_a_malformed_state_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    """Wrong types, impossible numbers and missing keys are errors, never a silent fresh start."""
    with pytest.raises(StateError):
        load_state(damage(state(Cursor(1, 30))), order())


def test_a_spent_epoch_gives_way_to_the_next() -> None:
    """At or beyond N the next epoch starts. An epoch without samples does not lead to endless skipping."""
    assert Cursor(4, 99).normalised(100) == Cursor(4, 99)
    assert Cursor(4, 100).normalised(100) == Cursor(4, 101).normalised(100) == Cursor(5, 0)
    assert Cursor(-1, 0).normalised(100) == Cursor(0, 0)
    assert Cursor(4, 0).normalised(0) == Cursor(4, 0)
    assert Cursor(4, 0).after(3) == Cursor(4, 3)
