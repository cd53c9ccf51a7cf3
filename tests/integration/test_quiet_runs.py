"""A plain program says nothing, and a loader refuses what would decide the order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from streaming import LocalDataset, StreamingDataLoader, StreamingDataset
from streaming.errors import OptionError
from support.numbered import checked_ids, write_numbered

IMPORTS = """\
from torch.utils.data import DataLoader
from streaming import LocalDataset, StreamingDataLoader, StreamingDataset
"""
PROGRAMS = {
    "a dataset": "for sample in StreamingDataset(local='source', batch_size=4): pass",
    "by number": "StreamingDataset(local='source')[3]",
    "a cache": "list(StreamingDataset(remote='source', local='cache', batch_size=4, shuffle=True))",
    "a limited cache": "list(StreamingDataset(remote='source', local='few', batch_size=4, cache_limit='1 MB'))",
    "compressed": "list(StreamingDataset(remote='zipped', local='unzipped', batch_size=4))",
    "our loader": "list(StreamingDataLoader(StreamingDataset(local='source', shuffle=True), batch_size=4))",
    "workers": "list(StreamingDataLoader(StreamingDataset(local='source'), batch_size=4, num_workers=2))",
    "a plain loader": "list(DataLoader(StreamingDataset(local='source', batch_size=4), batch_size=4, num_workers=2))",
    "a state": "ds = StreamingDataset(local='source', batch_size=4); ds.load_state_dict(ds.state_dict(4, True))",
    "explained": "ds = StreamingDataset(local='source', batch_size=4); print(ds, ds.explain(), ds.stats())",
    "a local dataset": "list(DataLoader(LocalDataset('source'), batch_size=4, shuffle=True))",
    "not closed": "i = iter(StreamingDataset(remote='source', local='cache', batch_size=4)); next(i)",
    "not closed, workers": (
        "i = iter(StreamingDataLoader(StreamingDataset(remote='source', local='cache'), batch_size=4, num_workers=2)); "
        "next(i)"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quiet")
    write_numbered(str(folder / "source"), 120)
    write_numbered(str(folder / "zipped"), 120, compression="zstd")
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plain_program_says_nothing(folder: Path, name: str) -> None:
    """Warnings are errors, and the error stream stays empty, to the end of the interpreter."""
    program = f"{IMPORTS}if __name__ == '__main__':\n    {PROGRAMS[name]}\n"
    (folder / "program.py").write_text(program)
    options = ["-W", "error", "-W", "ignore:This DataLoader will create"]
    run = subprocess.run(
        [sys.executable, *options, "program.py"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.stderr == ""
    assert run.returncode == 0


MISPLACED: dict[str, tuple[Any, str]] = {
    "shuffle": (True, r"StreamingDataset\(shuffle=True"),
    "sampler": ([0, 1], "epoch_size="),
    "batch_sampler": ([[0, 1]], "batching_method="),
}


@pytest.mark.parametrize("kind", [DataLoader, StreamingDataLoader])
@pytest.mark.parametrize("name", MISPLACED)
def test_a_loader_refuses_what_the_dataset_decides(folder: Path, kind: Any, name: str) -> None:
    """By name or by place; the error names the dataset's own setting. Otherwise loaders are as they were."""
    dataset = StreamingDataset(local=str(folder / "source"), batch_size=4)
    value, text = MISPLACED[name]
    with pytest.raises(OptionError, match=rf"{name}= of a loader.*{text}"):
        kind(dataset, **{name: value})
    if name == "shuffle":
        with pytest.raises(OptionError, match="shuffle= of a loader"):
            kind(dataset, 4, True)

    class Own(StreamingDataset):
        pass

    with pytest.raises(OptionError, match=f"{name}= of a loader"):
        kind(Own(local=str(folder / "source")), **{name: value})
    numbers = kind(dataset, 4, False, None, None, collate_fn=checked_ids)
    assert sum(map(len, numbers)) == 120


@pytest.mark.parametrize("kind", [DataLoader, StreamingDataLoader])
def test_a_loader_over_a_local_dataset_shuffles(folder: Path, kind: Any) -> None:
    """PyTorch's sampler decides there."""
    loader = kind(LocalDataset(folder / "source"), batch_size=4, shuffle=True, collate_fn=checked_ids)
    assert sorted(number for batch in loader for number in batch) == list(range(120))


def test_the_class_of_a_dataset_is_its_class(folder: Path) -> None:
    """What a loader's constructor is told changes nothing for others."""
    dataset = StreamingDataset(local=str(folder / "source"))
    kinds: list[type] = [dataset.__class__, type(dataset)]
    assert kinds == [StreamingDataset, StreamingDataset]
    assert [isinstance(dataset, kind) for kind in (StreamingDataset, IterableDataset, LocalDataset)] == [
        True,
        True,
        False,
    ]
