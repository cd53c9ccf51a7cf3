"""States of checkpoints take effect or raise, are the same when asked for twice, and fit any layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streaming import StreamingDataLoader, StreamingDataset
from streaming.errors import StateError
from support.numbered import checked_ids, write_numbered

N, BATCH = 230, 8
N_BATCHES = -(-N // BATCH)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("state") / "source"
    write_numbered(str(folder), N)
    return str(folder)


def _dataset(source: str, **options: Any) -> StreamingDataset:
    return StreamingDataset(local=source, **{"shuffle": True, **options})


def _loader(source: str, n_workers: int = 0, persistent: bool = False, **options: Any) -> StreamingDataLoader:
    return StreamingDataLoader(
        _dataset(source, **options),
        batch_size=BATCH,
        num_workers=n_workers,
        persistent_workers=persistent,
        collate_fn=checked_ids,
    )


def _epoch(loader: Any) -> list[list[int]]:
    return list(loader)


@pytest.fixture(scope="module")
def epochs(source: str) -> list[list[list[int]]]:
    """Four whole epochs of an uninterrupted run."""
    loader = _loader(source)
    return [_epoch(loader) for _ in range(4)]


WORKERS = pytest.mark.parametrize(
    ("n_workers", "persistent"), [(0, False), (2, False), (2, True)], ids=["no workers", "workers", "persistent"]
)


@WORKERS
def test_only_the_first_epoch_after_a_resume_is_partial(
    source: str, epochs: list[list[list[int]]], n_workers: int, persistent: bool
) -> None:
    """Resume at 80 % of epoch 1 and read three epochs: 20 %, 100 % and 100 %, with the right numbers."""
    loader = _loader(source)
    _epoch(loader)
    spent = int(0.8 * N_BATCHES)
    list(islice(loader, spent))
    state = loader.state_dict()
    assert state is not None
    resumed = _loader(source, n_workers, persistent)
    resumed.load_state_dict(state)
    assert [_epoch(resumed) for _ in range(3)] == [epochs[1][spent:], epochs[2], epochs[3]]
    after = resumed.state_dict()
    assert after is not None
    assert after["epoch"] == 3


@WORKERS
@pytest.mark.parametrize("through", ["loader", "dataset"])
@pytest.mark.parametrize("when", ["fresh", "used", "remade"])
def test_a_loaded_state_takes_effect_wherever_it_is_loaded(
    source: str, epochs: list[list[list[int]]], n_workers: int, persistent: bool, through: str, when: str
) -> None:
    """In the loader or the dataset, before the first iterator or after one, and if the loader is made anew."""
    loader = _loader(source)
    list(islice(loader, 5))
    state = loader.state_dict()
    assert state is not None
    target = _loader(source, n_workers, persistent)
    if when == "used":
        list(islice(target, 9))
    dataset = target.dataset
    assert isinstance(dataset, StreamingDataset)
    (target if through == "loader" else dataset).load_state_dict(state)
    if when == "remade" and through == "dataset":
        target = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=n_workers, collate_fn=checked_ids)
    assert target.state_dict() == state
    assert _epoch(target) == epochs[0][5:]


@WORKERS
def test_save_of_load_is_the_identity_at_every_step(source: str, n_workers: int, persistent: bool) -> None:
    """At the start, at each batch and at the end: the state after loading a state is that state."""
    loader = _loader(source)
    states = [loader.state_dict()]
    for _ in loader:
        states.append(loader.state_dict())
        assert loader.state_dict() == states[-1], "the second answer differs"
    states.append(loader.state_dict())
    target = _loader(source, n_workers, persistent)
    for state in states:
        assert state is not None
        target.load_state_dict(state)
        assert target.state_dict() == state
        dataset = target.dataset
        assert isinstance(dataset, StreamingDataset)
        assert dataset.state_dict(0, from_beginning=False) == state
    assert states[0] is not None
    assert states[0]["epoch"] == -1
    assert len(_epoch(target)) == N_BATCHES, "the last state is the end of epoch 0: epoch 1 follows, and no empty one"


def test_the_state_at_the_end_begins_the_next_epoch(source: str, epochs: list[list[list[int]]]) -> None:
    """Also with drop_last, where less than the epoch was handed out."""
    for drop_last in (False, True):
        loader = StreamingDataLoader(_dataset(source), batch_size=BATCH, drop_last=drop_last, collate_fn=checked_ids)
        _epoch(loader)
        state = loader.state_dict()
        assert state is not None
        resumed = _loader(source)
        resumed.load_state_dict(state)
        assert _epoch(resumed) == epochs[1]


@WORKERS
def test_breaking_early_begins_the_next_epoch_each_time(
    source: str, epochs: list[list[list[int]]], n_workers: int, persistent: bool
) -> None:
    """Three batches of each epoch, any number of times; `set_epoch` restarts one, loading the state continues it."""
    loader = _loader(source, n_workers, persistent)
    assert [list(islice(loader, 3)) for _ in range(4)] == [epoch[:3] for epoch in epochs]

    dataset = loader.dataset
    assert isinstance(dataset, StreamingDataset)
    for _ in range(3):  # restart
        dataset.set_epoch(1)
        assert list(islice(loader, 3)) == epochs[1][:3]

    dataset.set_epoch(0)  # continue
    found: list[list[int]] = []
    while len(found) < N_BATCHES + 4:
        found += list(islice(loader, 3))
        state = loader.state_dict()
        assert state is not None
        loader.load_state_dict(state)
    assert found[: N_BATCHES + 4] == [*epochs[0], *epochs[1][:4]]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_plain_loaders_count_epochs_alike(source: str, epochs: list[list[list[int]]], method: str) -> None:
    """PyTorch's own loader, with one seed before every epoch, so that all its workers get one base seed."""
    import torch

    dataset = _dataset(source, batch_size=BATCH)
    loader = DataLoader(
        dataset, batch_size=BATCH, num_workers=2, multiprocessing_context=method, collate_fn=checked_ids
    )
    for epoch in range(2):
        torch.manual_seed(0)
        assert _epoch(loader) == epochs[epoch]
    torch.manual_seed(0)
    for _ in loader:
        break
    torch.manual_seed(0)
    assert _epoch(loader) == epochs[3]


def test_two_loaders_at_once_over_one_dataset_are_two_epochs(source: str, epochs: list[list[list[int]]]) -> None:
    """Interleaved, with workers: each iteration is an epoch of its own."""
    dataset = _dataset(source)
    loaders = [StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=checked_ids) for _ in range(2)]
    iterators: list[Iterator[list[int]]] = [iter(loader) for loader in loaders] + [iter(loaders[0])]
    found = [list(step) for step in zip(*iterators)]
    assert [[step[number] for step in found] for number in range(3)] == epochs[:3]


def test_another_dataset_is_refused_by_name(source: str, tmp_path: Path) -> None:
    """Other data, seed, weights or settings: the error names the field and both values. The world may change."""
    state = _loader(source).state_dict()
    assert state is not None
    other = tmp_path / "other"
    write_numbered(str(other), N + 1)
    cases: list[tuple[StreamingDataset, str]] = [
        (_dataset(str(other)), f"samples: saved {N}, now {N + 1}"),
        (_dataset(source, shuffle_seed=1), "shuffle_seed: saved 9176, now 1"),
        (_dataset(source, shuffle_algo="naive"), "shuffle_algo: saved 'py1e', now 'naive'"),
        (_dataset(source, shuffle_block_size=7), "shuffle_block_size"),
        (_dataset(source, num_canonical_nodes=2), "num_canonical_nodes"),
    ]
    for dataset, text in cases:
        with pytest.raises(StateError, match=text):
            dataset.load_state_dict(state)
        dataset.load_state_dict(state, accept_other_order=True)


def test_a_state_of_the_predecessor_loads_between_epochs_only(source: str, epochs: list[list[list[int]]]) -> None:
    """Its order is another one: in mid-epoch the error names the argument that accepts this."""
    state = {
        "epoch": 1,
        "sample_in_epoch": 0,
        "num_canonical_nodes": 64,
        "shuffle_seed": 9176,
        "initial_physical_nodes": 1,
    }
    loader = _loader(source)
    loader.load_state_dict(state)
    assert _epoch(loader) == epochs[1]
    loader.load_state_dict({**state, "sample_in_epoch": N})
    assert _epoch(loader) == epochs[2]
    with pytest.raises(StateError, match="accept_other_order=True"):
        loader.load_state_dict({**state, "sample_in_epoch": 40})
    loader.load_state_dict({**state, "sample_in_epoch": 40}, accept_other_order=True)
    assert _epoch(loader) == epochs[1][5:]


@pytest.mark.parametrize("bad", [None, {}, {"epoch": 0}, "state", {"epoch": "0", "sample_in_epoch": 0}])
def test_anything_but_a_state_is_refused(source: str, bad: Any) -> None:
    """It is never ignored in silence."""
    with pytest.raises(StateError):
        _loader(source).load_state_dict(bad)


def test_a_state_is_small_and_json(source: str) -> None:
    """Its size does not grow with the data."""
    text = json.dumps(_loader(source).state_dict())
    assert len(text) < 1024
    assert json.loads(text) == _loader(source).state_dict()
