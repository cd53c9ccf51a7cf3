"""A compressed source without remote is read, never changed, and unpacked in one place that is found again."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, StreamingDataset
from support.numbered import checked_id, write_numbered

N = 300


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compressed dataset, and a temporary directory of its own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    write_numbered(str(tmp_path / "source"), N, compression="zstd")
    return tmp_path / "source"


def _unpacked(source: Path) -> dict[str, int]:
    """The unpacked shards of all sources, by path, and their sizes."""
    return {
        str(path): path.stat().st_size
        for path in (source.parent / "tmp").rglob("shard.*.mds")
        if ".streaming" not in str(path)
    }


def _read(kind: Any, source: Any, **options: Any) -> list[int]:
    with_batches = {"batch_size": 4} if kind is StreamingDataset else {}
    dataset = kind(local=str(source), **with_batches, **options)
    numbers = [checked_id(dataset[i]) for i in range(N)]
    dataset.close()
    return numbers


@pytest.mark.parametrize("kind", [StreamingDataset, LocalDataset])
def test_it_is_unpacked_once_in_one_place_and_said_once(
    source: Path, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With its size and how to choose another; a link to it is the same source."""
    before = sorted((path.name, path.stat().st_mtime_ns) for path in source.iterdir())
    assert _read(kind, source) == list(range(N))
    found = _unpacked(source)
    assert len({os.path.dirname(path) for path in found}) == 1
    said = [record.getMessage() for record in caplog.records if "decompressed into" in record.getMessage()]
    assert len(said) == 1
    assert os.path.dirname(next(iter(found))) in said[0]
    assert "KiB" in said[0]
    caplog.clear()
    (source.parent / "link").symlink_to(source)
    with caplog.at_level(logging.INFO, logger="streaming"):
        for again in (source, source.parent / "link"):
            assert _read(kind, again) == list(range(N))
    assert _unpacked(source) == found
    assert not caplog.records
    assert sorted((path.name, path.stat().st_mtime_ns) for path in source.iterdir()) == before


@pytest.mark.parametrize("kind", [StreamingDataset, LocalDataset])
def test_it_is_bounded_by_the_limit(source: Path, kind: Any) -> None:
    """Shards are evicted, and unpacked again when they are needed."""
    limit = 64 << 10
    assert _read(kind, source, cache_limit=limit) == list(range(N))
    assert 0 < sum(_unpacked(source).values()) <= limit


@pytest.mark.parametrize("kind", [StreamingDataset, LocalDataset])
def test_a_source_that_is_written_anew_is_unpacked_anew(source: Path, kind: Any) -> None:
    """Also where all sizes are the same as before: nothing old is read."""
    assert _read(kind, source) == list(range(N))
    for path in source.iterdir():
        path.unlink()
    write_numbered(str(source), N, first=N, compression="zstd")
    dataset = kind(local=str(source))
    assert [checked_id(dataset[i]) for i in range(N)] == list(range(N, 2 * N))
