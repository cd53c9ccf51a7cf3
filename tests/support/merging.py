"""Parts of a dataset, as several processes would write them, and the content of the merged dataset."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streaming import LocalDataset
from support.numbered import checked_ids, write_numbered

INDEX = "index.json"


def write_parts(root: str | os.PathLike[str], sizes: Mapping[str, int], **options: Any) -> list[int]:
    """Write a dataset of the given size into each folder below `root`; return all ids in that order."""
    first = 0
    for folder, n_samples in sizes.items():
        with tempfile.TemporaryDirectory() as place:  # writers need an empty one, a part may contain others
            write_numbered(place, n_samples, first=first, **{"size_limit": 700, **options})
            shutil.copytree(place, os.path.join(root, folder), dirs_exist_ok=True)
        first += n_samples
    return list(range(first))


def shards_of(index: bytes | Path) -> list[dict[str, Any]]:
    """The shard objects of an index."""
    shards: list[dict[str, Any]] = json.loads(index if isinstance(index, bytes) else index.read_bytes())["shards"]
    return shards


def names_of(index: bytes | Path) -> list[str]:
    """The names of the stored files that an index lists."""
    return [(shard["zip_data"] or shard["raw_data"])["basename"] for shard in shards_of(index)]


def ids_in(folder: str | os.PathLike[str]) -> list[int]:
    """The ids of all samples of a folder, in order. Every byte is checked."""
    dataset = LocalDataset(os.fspath(folder))
    try:
        return checked_ids(dataset[:])
    finally:
        dataset.close()


def contents_of(folder: Path) -> dict[str, bytes]:
    """The content of all files below a folder except its own index, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path != folder / INDEX
    }
