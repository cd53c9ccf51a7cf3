"""Nothing of a user's is deleted, whatever the names of folders: a source that two paths lead to stays whole.

With a `cache_limit` far below the size of the data, each path is the cache in turn.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streaming import MDSWriter, StreamingDataset
from streaming.folder_identity import is_same_folder
from support.disks import bound
from support.numbered import COLUMNS, checked_id, numbered, write_numbered

N_SAMPLES = 400
LIMIT = 20_000
"""Of about 80,000 bytes."""

Reached = contextlib.AbstractContextManager[tuple[str, str]]


@contextlib.contextmanager
def by_link(source: Path, work: Path) -> Iterator[tuple[str, str]]:
    (work / "link").symlink_to(source)
    yield str(source), str(work / "link")


@contextlib.contextmanager
def by_relative_path(source: Path, work: Path) -> Iterator[tuple[str, str]]:
    before = os.getcwd()
    os.chdir(work)
    try:
        yield str(source), os.path.relpath(source, work)
    finally:
        os.chdir(before)


@contextlib.contextmanager
def by_mount(source: Path, work: Path) -> Iterator[tuple[str, str]]:
    with bound(source, work / "again"):
        yield str(source), str(work / "again")


@contextlib.contextmanager
def by_mount_of_the_split(source: Path, work: Path) -> Iterator[tuple[str, str]]:
    """Only the folder of the split is the same; the folders above are two."""
    with bound(source / "train", work / "again" / "train"):
        yield str(source), str(work / "again")


@contextlib.contextmanager
def by_mount_of_a_folder_above(source: Path, work: Path) -> Iterator[tuple[str, str]]:
    with bound(source.parent, work / "above"):
        yield str(source), str(work / "above" / source.name)


@contextlib.contextmanager
def by_link_into_a_mount(source: Path, work: Path) -> Iterator[tuple[str, str]]:
    with bound(source, work / "again"):
        (work / "link").symlink_to(work / "again")
        yield str(source), str(work / "link")


WAYS = [by_link, by_relative_path, by_mount, by_mount_of_the_split, by_mount_of_a_folder_above, by_link_into_a_mount]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but those of fetchers that have met there."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".streaming" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("way", WAYS)
def test_a_source_that_is_also_the_cache_is_read_and_not_touched(
    tmp_path: Path, way: Callable[[Path, Path], Reached], compression: str | None, is_swapped: bool
) -> None:
    source = tmp_path / "data" / "set"
    write_numbered(str(source / "train"), N_SAMPLES, compression=compression)
    before = contents(source)
    work = tmp_path / "work"
    work.mkdir()
    with way(source, work) as paths:
        remote, local = paths[::-1] if is_swapped else paths
        with StreamingDataset(
            remote=remote, local=local, split="train", batch_size=4, shuffle=True, cache_limit=LIMIT
        ) as dataset:
            for _ in range(2):
                assert sorted(map(checked_id, dataset)) == list(range(N_SAMPLES))
        assert contents(source) == before


def test_a_source_below_the_root_of_a_cache_stays(tmp_path: Path) -> None:
    """It lies below the root by a mount, and says itself that it is a copy; as a source it stays all the same."""
    source = tmp_path / "data"
    write_numbered(str(tmp_path / "origin"), N_SAMPLES)
    with StreamingDataset(remote=str(tmp_path / "origin"), local=str(source), batch_size=4) as dataset:
        assert len(list(dataset)) == N_SAMPLES
    before = contents(source)
    assert ".streaming-source" in before
    with (
        bound(source, tmp_path / "cache" / "below"),
        StreamingDataset(remote=str(source), local=str(tmp_path / "cache"), batch_size=4, cache_limit=LIMIT) as dataset,
    ):
        with contextlib.suppress(Exception):  # the source counts, so there may be no room at all
            assert len(list(dataset)) == N_SAMPLES
        assert contents(source) == before


@pytest.mark.parametrize("way", [by_link, by_relative_path, by_mount, by_mount_of_a_folder_above])
def test_a_writer_keeps_what_it_wrote_where_both_its_folders_are_one(
    tmp_path: Path, way: Callable[[Path, Path], Reached]
) -> None:
    """What is local is deleted when it has been uploaded, but not if that is the same file."""
    source, work = tmp_path / "data" / "set", tmp_path / "work"
    source.mkdir(parents=True)
    work.mkdir()
    with way(source, work) as (one, other):
        with MDSWriter(out=(one, other), columns=COLUMNS, size_limit=4096) as out:
            for number in range(100):
                out.write(numbered(number))
        with StreamingDataset(local=str(source), batch_size=1) as dataset:
            assert list(map(checked_id, dataset)) == list(range(100))


def test_two_folders_are_two(tmp_path: Path) -> None:
    """Also if one is a copy of the other, or lies in it, or neither exists."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    names = ["a", "a/b", "c", "no", "no/such"]
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            assert is_same_folder(str(tmp_path / one), str(tmp_path / other)) == (i == j), (one, other)
