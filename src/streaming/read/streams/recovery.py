"""What a machine that died may have taken from a cache: found at the next start, and fetched again."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from streaming.cache.durability import lost_since_s, note_synced
from streaming.cache.files import read_mark, table_name
from streaming.formats.hashing import fastest, hasher
from streaming.formats.index import ShardIndex
from streaming.read.streams.indexes import StreamFiles
from streaming.regular_file import open_regular

_log: Final = logging.getLogger("streaming")
_READ_BYTES: Final = 1 << 20


def discard_lost(streams: Sequence[StreamFiles]) -> None:
    """Delete from the caches of these streams what may have lost its bytes when the machine died.

    A shard of which the index has a hash is read through instead, and stays if its bytes are right.
    """
    for stream in streams:
        folder = stream.location.cache
        since_s = lost_since_s(folder)
        if since_s is None:
            continue
        began_s = time.time()
        names = [name for name in _names(stream.index) if _is_younger(os.path.join(folder, name), since_s)]
        right = _right_shards(stream.index, folder, frozenset(names))
        _delete(stream.location.title, [os.path.join(folder, name) for name in names if name not in right])
        note_synced(folder, began_s)


def discard_lost_side_files(title: str, folder: str) -> None:
    """The same for files that no index lists: those that carry the mark of a copy."""
    since_s = lost_since_s(folder)
    if since_s is None:
        return
    began_s = time.time()
    paths = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    _delete(title, [path for path in paths if _is_younger(path, since_s) and read_mark(path) is not None])
    note_synced(folder, began_s)


def _names(index: ShardIndex) -> Iterator[str]:
    """Every name under which a file of a shard may lie in the cache."""
    for shard in range(index.n_shards):
        raw, zipped = index.raw_name(shard), index.zip_name(shard)
        yield from (raw, table_name(raw))
        if zipped is not None:
            yield zipped


def _is_younger(path: str, since_s: float) -> bool:
    try:
        return os.lstat(path).st_mtime >= since_s
    except OSError:
        return False


def _right_shards(index: ShardIndex, folder: str, names: frozenset[str]) -> set[str]:
    """Which of these files have the hash that the index states."""
    right = set()
    for shard in range(index.n_shards):
        forms = ((index.raw_name(shard), index.raw_hashes(shard)), (index.zip_name(shard), index.zip_hashes(shard)))
        for name, hashes in forms:
            kind = fastest(hashes) if name in names else None
            if name is not None and kind is not None and _hash_of(os.path.join(folder, name), kind) == hashes[kind]:
                right.add(name)
    return right


def _hash_of(path: str, kind: str) -> str | None:
    digest = hasher(kind)
    try:
        with open(open_regular(path), "rb") as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def _delete(title: str, paths: Sequence[str]) -> None:
    n_deleted = 0
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
            n_deleted += 1
    if n_deleted:
        _log.warning(
            "%s: %d cached files may not have reached the disk before the machine stopped; they are fetched again",
            title,
            n_deleted,
        )
