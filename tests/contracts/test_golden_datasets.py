"""What the predecessor wrote, through the doors that users take: streamed, cached, in place, and map-style."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, StreamingDataset
from streaming.errors import NotYetError
from support import golden
from support.fetcher_world import wait_until

VIEWS = [
    pytest.param(name, view, id=f"{name}:{view['path']}:{view['split']}")
    for name in golden.names()
    for view in golden.expected(name)["views"]
]


def _shards(name: str, view: dict[str, Any]) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = json.loads(golden.read_file(golden.view_folder(name, view), "index.json"))["shards"]
    return shards


@pytest.mark.parametrize(("name", "view"), VIEWS)
def test_every_door_gives_the_expected_samples(name: str, view: dict[str, Any], tmp_path: Path) -> None:
    """Every MDS set reads to its expected values; other formats and empty sets are refused as documented."""
    root = os.path.join(golden.ROOT, name, view["path"])
    cached = {"remote": root, "local": str(tmp_path / "cache"), "split": view["split"], "allow_unsafe_types": True}
    in_place = {"local": root, "split": view["split"], "allow_unsafe_types": True}
    if {shard["format"] for shard in _shards(name, view)} - {"mds"}:
        for options in (cached, in_place):
            with pytest.raises(NotYetError, match="format"):
                StreamingDataset(**options)
        return
    if not view["num_samples"]:
        for options in (cached, in_place):
            with pytest.raises(getattr(builtins, view["streaming_dataset_raises"])):
                StreamingDataset(**options)
        with pytest.raises(getattr(builtins, view["local_dataset_raises"])):
            LocalDataset(root, view["split"])
        return
    before = _listing(root)
    datasets: list[StreamingDataset | LocalDataset] = [
        StreamingDataset(**cached),
        StreamingDataset(**in_place),
        LocalDataset(root, view["split"], allow_unsafe_types=True),
    ]
    for dataset in datasets:
        assert dataset.size == len(dataset) == view["num_samples"]
        golden.check_samples(dataset[:], view["samples"])
    streamed = datasets[0]
    assert isinstance(streamed, StreamingDataset)
    assert streamed.samples_per_shard.tolist() == view["samples_per_shard"]
    golden.check_samples(list(streamed), view["samples"])
    n_samples = {shard["raw_data"]["basename"]: shard["samples"] for shard in _shards(name, view)}
    _check_cache(tmp_path / "cache" / (view["split"] or ""), view["raw_files"], n_samples)
    assert _listing(root) == before, "a source is only read"


def _check_cache(cache: Path, raw_files: dict[str, Any], n_samples: dict[str, int]) -> None:
    """The cache holds the uncompressed files that the index names, byte for byte; an empty shard need not be there."""
    expected = {name for name in raw_files if n_samples[name]}
    # Samples may have come by range, before their shard.
    wait_until("all shards have come", lambda: expected <= {str(path.relative_to(cache)) for path in _shards_in(cache)})
    found = {str(path.relative_to(cache)): path.read_bytes() for path in _shards_in(cache)}
    assert set(found) == expected
    for name, content in found.items():
        facts = raw_files[name]
        assert (len(content), hashlib.sha256(content).hexdigest()) == (facts["nbytes"], facts["sha256"])


def _shards_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*.mds") if ".streaming" not in path.parts]


def _listing(root: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path(root).rglob("*")}
