"""Looking at what lies below a cache folder, and which of it is a copy of what can be fetched again.

A folder that the fetcher fills says so in a file of its own (`SOURCE_NAME`): of which remote it is a copy. What its
index lists may be deleted; nothing else ever is. So a file that the user put there, or a dataset that has no other
home, stays, whoever set which limit. Files that no index lists are copies if they say so themselves (`mark_of`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from streaming.cache.files import PRIVATE_FOLDER, read_mark, table_name, told
from streaming.cache.ledger import Lying, as_prefix
from streaming.errors import FormatError, StorageError
from streaming.formats.names import INDEX_NAME

SOURCE_NAME: Final = ".streaming-source"


@dataclass(frozen=True, slots=True)
class Source:
    """Of what a cache folder is a copy."""

    remote: str  # for people: without secrets
    digest: str  # of the remote as it was given


def source_of(remote: str, shown: str) -> Source:
    """What a folder's file says when it is a copy of `remote`."""
    return Source(shown, hashlib.blake2b(os.fsencode(remote), digest_size=16).hexdigest())


def mark_of(source: Source, name: str) -> str:
    """What a copy of an object that no index lists says of itself. Under another name it says nothing."""
    return f"{source.digest}/{name}"


def read_source(folder: str) -> Source | None:
    """Of what this folder is a copy; None if it says nothing that can be read."""
    try:
        with open(os.path.join(folder, SOURCE_NAME), encoding="utf-8") as file:
            found = json.load(file)
        return Source(str(found["remote"]), str(found["digest"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def claim(folder: str, source: Source) -> Source:
    """Make the folder a copy of `source`, unless it is one of another remote already: of which it is, from now on.

    Two processes that claim at once get the same answer. Raises CacheWriteError and other kinds of StorageError.
    """
    path = os.path.join(folder, SOURCE_NAME)
    known = read_source(folder)
    if known is None:
        with told(path):
            try:
                _write(path, source)
            except FileNotFoundError:  # swept away by one who took it for a dead writer's
                _write(path, source)
        known = read_source(folder)
    if known is None:
        raise StorageError(f"{path} cannot be read back; does something else write or delete there?")
    return known


def _write(path: str, source: Source) -> None:
    temporary = os.path.join(os.path.dirname(path), f".{SOURCE_NAME}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            json.dump({"remote": source.remote, "digest": source.digest}, file)
        try:
            os.link(temporary, path)
        except FileExistsError:
            if read_source(os.path.dirname(path)) is None:  # damaged: it says nothing, so nobody's claim is lost
                os.rename(temporary, path)
        except OSError:  # without links the last of two that claim at once holds it
            os.rename(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@dataclass(frozen=True, slots=True)
class Seen:
    """Every file below some folders by its path.

    `unseen`: folders that could not be read. `copies`, `sources`: which are copies of a remote, and from which nothing
    may go.
    """

    files: dict[str, Lying]
    unseen: frozenset[str]
    copies: frozenset[str]
    sources: frozenset[str]


class Inventory:
    """What lies below cache folders. Keeps the names of each index, which are read again when it changes."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[tuple[int, int], frozenset[str]]] = {}

    def look(self, roots: Collection[str], copies: Collection[str], sources: Collection[str]) -> Seen:
        """Everything below `roots`, but for private folders.

        `copies`: folders that are copies of a remote though they do not say so (another loader filled them).
        `sources`: folders from which nothing may go, whatever they say, as real paths.
        """
        files: dict[str, Lying] = {}
        foreign: set[str] = set()  # other users' files
        folders_seen: set[str] = set()
        unseen: set[str] = set()

        def failed(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                unseen.add(str(error.filename))

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
                            files[path] = Lying(status.st_size, last_use_s, may_go=False)
                            if status.st_uid != os.geteuid():
                                foreign.add(path)
        kept = frozenset(folder for folder in folders_seen if sources and os.path.realpath(folder) in sources)
        marked = {folder for folder in folders_seen if os.path.join(folder, SOURCE_NAME) in files}
        found_copies = frozenset((marked | (folders_seen & set(copies))) - kept)
        may_delete = functools.cache(_may_delete)
        listed = {os.path.join(folder, name) for folder in found_copies for name in self._names_in(folder)}
        source_at = functools.cache(read_source)
        for path in list(files):
            holder = os.path.dirname(path)
            is_copy = path in listed or (bool(marked) and _is_marked(path, source_at))
            if is_copy and holder not in kept and may_delete(holder, path in foreign):
                files[path] = replace(files[path], may_go=True)
        return Seen(files, frozenset(unseen), found_copies, kept)

    def _names_in(self, folder: str) -> frozenset[str]:
        """The names of all shards of the index in this folder, in every form; none if it cannot be read."""
        from streaming.formats.index import parse_index  # numpy, which a fetcher without a limit need not wait for

        path = os.path.join(folder, INDEX_NAME)
        try:
            status = os.stat(path)
            stamp = status.st_mtime_ns, status.st_size
            known = self._names.get(folder)
            if known is not None and known[0] == stamp:
                return known[1]
            with open(path, "rb") as file:
                index = parse_index(file.read(), where=path)
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


def _is_marked(path: str, source_at: Callable[[str], Source | None]) -> bool:
    """Whether this file says that it is the copy of an object, and lies where the copy of this object would."""
    digest, _, name = (read_mark(path) or "").partition("/")
    if not name or not path.endswith(f"/{name}"):
        return False
    source = source_at(path[: -len(name) - 1])
    return source is not None and source.digest == digest


def _may_delete(folder: str, is_foreign: bool) -> bool:
    """Whether the system lets us delete files of this folder: ours, or another user's."""
    try:
        status = os.stat(folder)
    except OSError:
        return False
    is_sticky = bool(status.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, status.st_uid)
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=True) and not (is_sticky and is_foreign)


def known_roots(roots: Collection[str]) -> list[str]:
    """Roots that lie in no other: each file is to be counted once."""
    kept: list[str] = []
    for root in sorted(roots):
        if not any(root == other or root.startswith(as_prefix(other)) for other in kept):
            kept.append(root)
    return kept
