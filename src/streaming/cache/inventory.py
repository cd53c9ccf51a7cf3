"""Scans cache folders: which files they hold, and which of these are copies that can be fetched again.

A folder that the fetcher fills names the remote of which it is a copy, in a file of its own (`ORIGIN_NAME`). The files
that its index lists may be deleted; nothing else ever is. So a file that the user put there stays, whatever the limits,
and so does a dataset that exists nowhere else. A file that no index lists is a copy if its own mark says so.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from streaming.cache.files import PRIVATE_FOLDER, read_mark, table_name
from streaming.cache.ledger import CachedFile
from streaming.cache.origin import ORIGIN_NAME, CopyOrigin, read_origin
from streaming.errors import FormatError
from streaming.folder_identity import KnownFolders
from streaming.formats.names import INDEX_NAME
from streaming.regular_file import read_regular


@dataclass(frozen=True, slots=True)
class CacheContents:
    """Every file below some folders, by its path.

    `unreadable`: folders that could not be read. `copies`: folders that are copies of a remote. `sources`: folders from
    which nothing may be deleted.
    """

    files: dict[str, CachedFile]
    unreadable: frozenset[str]
    copies: frozenset[str]
    sources: frozenset[str]


class Inventory:
    """Scans cache folders. Keeps the names that each index lists, and reads an index again when it changes."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[tuple[int, int], frozenset[str]]] = {}

    def scan(self, roots: Collection[str], copies: Collection[str], sources: Collection[str]) -> CacheContents:
        """Everything below `roots` except in private folders.

        `copies`: folders that are copies of a remote though they do not say so (another loader filled them).
        `sources`: folders from which nothing may be deleted, whatever they say and however they are reached.
        """
        files: dict[str, CachedFile] = {}
        foreign: set[str] = set()  # other users' files
        folders_seen: set[str] = set()
        unreadable: set[str] = set()

        def failed(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                unreadable.add(str(error.filename))

        for root in roots:
            for folder, folders, names in os.walk(root, onerror=failed):
                if PRIVATE_FOLDER in folders:
                    folders.remove(PRIVATE_FOLDER)
                folders_seen.add(folder)
                for path in (os.path.join(folder, name) for name in names):
                    with contextlib.suppress(OSError):
                        status = os.lstat(path)
                        if stat.S_ISREG(status.st_mode):  # a link takes no room, and is the user's
                            last_use_s = max(status.st_atime, status.st_mtime)
                            files[path] = CachedFile(status.st_size, last_use_s, is_evictable=False)
                            if status.st_uid != os.geteuid():
                                foreign.add(path)
        known_sources = KnownFolders(sources)
        kept = frozenset(folder for folder in folders_seen if known_sources.has(folder))
        marked = {folder for folder in folders_seen if os.path.join(folder, ORIGIN_NAME) in files}
        found_copies = frozenset((marked | (folders_seen & set(copies))) - kept)
        may_delete = functools.cache(_may_delete)
        listed = {os.path.join(folder, name) for folder in found_copies for name in self._names_in(folder)}
        origin_at = functools.cache(read_origin)
        for path in list(files):
            holder = os.path.dirname(path)
            is_copy = path in listed or (bool(marked) and _is_marked(path, origin_at))
            if is_copy and holder not in kept and may_delete(holder, path in foreign):
                files[path] = replace(files[path], is_evictable=True)
        return CacheContents(files, frozenset(unreadable), found_copies, kept)

    def _names_in(self, folder: str) -> frozenset[str]:
        """The names of all shards that the index of this folder lists, in every form; none if it cannot be read."""
        from streaming.formats.index import parse_index  # imports numpy, which a fetcher without a limit can do without

        path = os.path.join(folder, INDEX_NAME)
        try:
            status = os.stat(path)
            stamp = status.st_mtime_ns, status.st_size
            known = self._names.get(folder)
            if known is not None and known[0] == stamp:
                return known[1]
            index = parse_index(read_regular(path), where=path)
        except (OSError, FormatError):
            return frozenset()
        names = set()
        for shard in range(index.n_shards):
            raw, zipped = index.raw_name(shard), index.zip_name(shard)
            names |= {raw, table_name(raw)}
            if zipped is not None:
                names.add(zipped)
        self._names[folder] = stamp, frozenset(names)
        return self._names[folder][1]


def _is_marked(path: str, origin_at: Callable[[str], CopyOrigin | None]) -> bool:
    """Whether this file says that it is the copy of an object, and lies where the copy of that object would lie."""
    digest, _, name = (read_mark(path) or "").partition("/")
    if not name or not path.endswith(f"/{name}"):
        return False
    origin = origin_at(path[: -len(name) - 1])
    return origin is not None and origin.digest == digest


def _may_delete(folder: str, is_foreign: bool) -> bool:
    """Whether the system lets this user delete a file in `folder`: one of their own, or another user's."""
    try:
        status = os.stat(folder)
    except OSError:
        return False
    is_sticky = bool(status.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, status.st_uid)
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=True) and not (is_sticky and is_foreign)
