"""Settings as attributes, and what a state decides of those that were left open."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streaming import Stream, StreamingDataLoader, StreamingDataset, World
from streaming.errors import OptionError, StateError
from support.numbered import checked_id, checked_ids, write_numbered

N = 230

CHANGES: dict[str, Any] = {
    "shuffle": True,
    "shuffle_algo": "py1s",
    "shuffle_seed": 7,
    "shuffle_block_size": 40,
    "num_canonical_nodes": 4,
    "batching_method": "stratified",
    "sampling_method": "fixed",
    "sampling_granularity": 3,
    "epoch_size": 100,
    "remainder": "drop",
    "batch_size": 8,
    "predownload": 64,
}
FIXED: dict[str, tuple[Any, Any]] = {  # the value of a dataset without it, and another
    "cache_limit": (None, "10 GB"),
    "replication": (None, 2),
    "allow_unsafe_types": (False, True),
    "streams": (None, [Stream(local="elsewhere")]),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("settings") / "source"
    write_numbered(str(folder), N)
    return str(folder)


def _ids(dataset: StreamingDataset) -> list[int]:
    return [checked_id(sample) for sample in dataset]


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_assigned_before_the_first_epoch_is_as_if_it_had_been_given(source: str, name: str) -> None:
    """The order, the length and the state are those of a dataset that was made with it."""
    base: dict[str, Any] = {"shuffle": True, "batch_size": 4, "num_canonical_nodes": 2}
    base.pop(name, None)
    given = StreamingDataset(local=source, **{**base, name: CHANGES[name]})
    assigned = StreamingDataset(local=source, **base)
    setattr(assigned, name, CHANGES[name])
    assert getattr(assigned, name) == getattr(given, name) == CHANGES[name]
    assert len(assigned) == len(given)
    assert _ids(assigned) == _ids(given)
    assert assigned.state_dict(8, from_beginning=True) == given.state_dict(8, from_beginning=True)


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_assigned_later_is_refused_unless_it_is_the_same(source: str, name: str) -> None:
    """The error names the constructor's argument. What the attribute shows, and what was given, may be assigned."""
    dataset = StreamingDataset(local=source, batch_size=4)
    next(iter(dataset))
    setattr(dataset, name, getattr(dataset, name))
    with pytest.raises(OptionError, match=rf"StreamingDataset\(\.\.\., {name}="):
        setattr(dataset, name, CHANGES[name])


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_cannot_be_meant_is_refused_when_assigned(source: str, name: str) -> None:
    """As by the constructor; the dataset stays as it was."""
    dataset = StreamingDataset(local=source, batch_size=4)
    before = getattr(dataset, name)
    with pytest.raises(OptionError):
        setattr(dataset, name, object())
    assert getattr(dataset, name) == before


@pytest.mark.parametrize("name", FIXED)
def test_a_setting_that_is_fixed_takes_only_its_own_value(source: str, name: str) -> None:
    """The error names the constructor's argument."""
    dataset = StreamingDataset(local=source, batch_size=4)
    same, other = FIXED[name]
    setattr(dataset, name, same)
    setattr(dataset, name, getattr(dataset, name))
    with pytest.raises(OptionError, match=rf"StreamingDataset\(\.\.\., {name}="):
        setattr(dataset, name, other)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_subclass_may_keep_its_arguments_under_their_own_names(source: str, is_before: bool) -> None:
    """Before or after the constructor of the dataset is called."""

    class Kept(StreamingDataset):
        def __init__(self, **options: Any) -> None:
            if is_before:
                for name, value in options.items():
                    setattr(self, name, value)
            super().__init__(**options)
            if not is_before:
                for name, value in options.items():
                    setattr(self, name, value)

    options = {**CHANGES, "local": source, "cache_limit": "10 GB", "streams": None, "replication": None}
    dataset = Kept(**options)
    for name, value in CHANGES.items():
        assert getattr(dataset, name) == value


def test_a_value_assigned_before_the_constructor_holds_where_its_argument_is_left_out(source: str) -> None:
    """An argument that was given holds; one that was not takes the early value."""

    class Early(StreamingDataset):
        def __init__(self) -> None:
            self.shuffle = True
            self.batch_size = 99
            super().__init__(local=source, batch_size=4)

    dataset = Early()
    assert (dataset.shuffle, dataset.batch_size) == (True, 4)
    assert _ids(dataset) == _ids(StreamingDataset(local=source, batch_size=4, shuffle=True))


def test_next_epoch_is_assigned_as_by_set_epoch(source: str) -> None:
    """At any time."""
    one, two = (StreamingDataset(local=source, batch_size=4, shuffle=True) for _ in range(2))
    for _ in range(2):
        one.next_epoch = 5
        two.set_epoch(np.int64(5))  # type: ignore[arg-type]
        assert one.next_epoch == 5
        assert _ids(one) == _ids(two)
    with pytest.raises(OptionError, match="epoch"):
        one.next_epoch = -1


# --- states

OPEN = [
    {"num_canonical_nodes": 4},
    {"shuffle_block_size": 30},
    {"shuffle_seed": 11},
    {"num_canonical_nodes": 8, "shuffle_block_size": 17, "shuffle_seed": 3},
]


@pytest.mark.parametrize("given", OPEN)
@pytest.mark.parametrize(("n_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_what_was_left_open_is_taken_from_the_state(
    source: str, given: dict[str, Any], n_workers: int, persistent: bool
) -> None:
    """A state resumes exactly in a dataset that leaves these open, also where workers of an epoch before it live on."""
    first = StreamingDataLoader(
        StreamingDataset(local=source, shuffle=True, **given), batch_size=8, collate_fn=checked_ids
    )
    epoch = list(first)
    list(islice(first, 5))
    state = first.state_dict()
    list(first)
    second = list(first)

    dataset = StreamingDataset(local=source, shuffle=True)
    loader = StreamingDataLoader(
        dataset, batch_size=8, collate_fn=checked_ids, num_workers=n_workers, persistent_workers=persistent
    )
    before = list(loader)
    assert before != epoch, "the settings change nothing"
    loader.load_state_dict(json.loads(json.dumps(state)))
    assert loader.state_dict() == state
    rest = list(loader)
    assert len(rest) == len(epoch) - 5
    assert rest == _resumed(source, given, state)
    assert list(loader) == _epoch_of(source, given, 2)
    assert second == _epoch_of(source, given, 3)
    for name, value in given.items():
        assert getattr(dataset, name) == value


def _resumed(source: str, given: dict[str, Any], state: Any) -> list[list[int]]:
    loader = StreamingDataLoader(
        StreamingDataset(local=source, shuffle=True, **given), batch_size=8, collate_fn=checked_ids
    )
    loader.load_state_dict(state)
    return list(loader)


def _epoch_of(source: str, given: dict[str, Any], epoch: int) -> list[list[int]]:
    dataset = StreamingDataset(local=source, shuffle=True, **given)
    dataset.set_epoch(epoch)
    return list(StreamingDataLoader(dataset, batch_size=8, collate_fn=checked_ids))


@pytest.mark.parametrize(("name", "saved", "now"), [
    ("num_canonical_nodes", 4, 8), ("shuffle_block_size", 30, 31), ("shuffle_seed", 11, 12),
])  # fmt: skip
def test_what_was_given_and_differs_is_refused(source: str, name: str, saved: Any, now: Any) -> None:
    """And with `accept_other_order` the count alone is taken."""
    state = StreamingDataset(local=source, shuffle=True, batch_size=8, **_only(name, saved)).state_dict(40, True)
    dataset = StreamingDataset(local=source, shuffle=True, batch_size=8, **_only(name, now))
    with pytest.raises(StateError, match=f"{name}.*{saved}.*{now}"):
        dataset.load_state_dict(state)
    dataset.load_state_dict(state, accept_other_order=True)
    assert getattr(dataset, name) == now
    assert len(_ids(dataset)) == N - 40


def _only(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def test_a_second_state_is_compared_with_what_the_user_gave(source: str) -> None:
    """Not with what the first state has decided."""
    states = [
        StreamingDataset(local=source, shuffle=True, batch_size=8, shuffle_seed=seed).state_dict(40, True)
        for seed in (1, 2)
    ]
    dataset = StreamingDataset(local=source, shuffle=True, batch_size=8)
    for seed, state in zip((1, 2), states):
        dataset.load_state_dict(state)
        assert dataset.shuffle_seed == seed
        assert dataset.state_dict(0, from_beginning=False) == state


def test_the_order_of_a_loaded_state_reaches_plain_loaders_and_spawned_workers(source: str) -> None:
    """Workers hear of it with their epoch, or with the dataset."""
    made = StreamingDataset(local=source, shuffle=True, batch_size=8, num_canonical_nodes=4)
    state = made.state_dict(80, from_beginning=True)
    expected = None
    for context in (None, "fork", "spawn"):
        dataset = StreamingDataset(local=source, shuffle=True, batch_size=8)
        dataset.load_state_dict(state)
        loader: Any = DataLoader(
            dataset,
            batch_size=8,
            num_workers=2 if context else 0,
            multiprocessing_context=context,
            collate_fn=checked_ids,
        )
        found = list(loader)
        expected = expected or found
        assert found == expected


# --- a checkpoint never fails a run


@pytest.mark.parametrize("n", [0, 8, np.int64(16), 24.0])
@pytest.mark.parametrize("from_beginning", [True, False])
def test_a_state_may_be_asked_for_before_any_epoch(source: str, n: Any, from_beginning: bool) -> None:
    """It says epoch 0 and the samples, and can be loaded."""
    dataset = StreamingDataset(local=source, shuffle=True, batch_size=8)
    state = json.loads(json.dumps(dataset.state_dict(n, from_beginning)))
    assert state["sample_in_epoch"] == n
    assert state["epoch"] == (0 if n else -1)
    other = StreamingDataset(local=source, shuffle=True, batch_size=8)
    other.load_state_dict(state)
    assert _ids(other) == _ids(dataset)[int(n) :]


def test_a_state_may_be_asked_for_where_the_world_is_unusable(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a launcher that contradict each other are an error of iteration, not of a checkpoint."""
    dataset = StreamingDataset(local=source, batch_size=8, world=None)
    expected = dataset.state_dict(8, True)
    monkeypatch.setenv("WORLD_SIZE", "8")
    state = dataset.state_dict(8, True)
    assert state == {**expected, "initial_physical_nodes": None}
    StreamingDataset(local=source, batch_size=8, world=World()).load_state_dict(state)
    with pytest.raises(RuntimeError, match="RANK"):
        iter(dataset)
