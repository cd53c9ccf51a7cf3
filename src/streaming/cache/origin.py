"""What a cache folder says of itself: of which remote it is a copy, and of which version of its index.

The fetcher writes that beside the files, in `ORIGIN_NAME`. A remote that was written anew has another index. Its files
never come into the folder of the old one, so old and new shards are never mixed, though names and sizes are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Final

from streaming.cache.files import translating_errors
from streaming.errors import StorageError
from streaming.placement import UnplacedFile
from streaming.regular_file import read_regular

ORIGIN_NAME: Final = ".streaming-source"
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """An index: its content, and what the store said of the object that had it."""

    digest: str
    """Of the bytes."""
    n_bytes: int
    version: str | None
    """As in `ObjectFacts`: the same version is the same content, another one may still be."""
    modified_s: float | None
    """When it was written, by the store's clock."""
    is_hashed: bool
    """Whether it has a hash of each shard, so that its bytes say all that there is to know of the dataset."""

    def is_of(self, n_bytes: int, version: str | None, modified_s: float | None) -> bool:
        """Whether the object of which the store says this is surely this index. False: it may be another one."""
        said = n_bytes, version, modified_s
        return self.version is not None and (self.n_bytes, self.version, self.modified_s) == said

    @property
    def identity(self) -> str:
        """What two indexes of one dataset have in common.

        Without hashes, a dataset that was written anew with samples of the same sizes has an index of the same bytes.
        """
        return self.digest if self.is_hashed or self.modified_s is None else f"{self.digest}@{self.modified_s!r}"


@dataclass(frozen=True, slots=True)
class CopyOrigin:
    """The remote of which a cache folder is a copy."""

    remote: str
    """For people: without secrets."""
    digest: str
    """Of the remote as it was given."""
    index: IndexVersion | None = None
    """Which index its files belong to; None if no index lists them, or if that is not known."""

    def admits(self, other: CopyOrigin) -> bool:
        """Whether files of `other` may lie in a folder that is a copy of this origin."""
        return self.digest == other.digest and (
            self.index is None or other.index is None or self.index.identity == other.index.identity
        )


def origin_of(remote: str, shown: str) -> CopyOrigin:
    """The origin that a copy of `remote` names; `shown` is the remote without secrets."""
    return CopyOrigin(shown, hashlib.blake2b(os.fsencode(remote), digest_size=16).hexdigest())


def digest_of(content: bytes) -> str:
    """The digest by which indexes are compared."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def mark_of(origin: CopyOrigin, name: str) -> str:
    """The mark of a copy that no index lists: it names the object `name`, and holds under that name only."""
    return f"{origin.digest}/{name}"


def read_origin(folder: str) -> CopyOrigin | None:
    """The origin that a cache folder names; None if it names none that can be read."""
    try:
        found = json.loads(read_regular(os.path.join(folder, ORIGIN_NAME), _MAX_BYTES))
        return CopyOrigin(str(found["remote"]), str(found["digest"]), _index_in(found))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def claim(folder: str, origin: CopyOrigin) -> CopyOrigin:
    """Make the folder a copy of `origin` unless it holds files of another one; returns the origin that holds now.

    Two processes that claim at once get the same answer. A folder that does not say which index it copies, or under
    which version the store had it, says so from now on. Raises CacheWriteError and other kinds of StorageError.
    """
    path = os.path.join(folder, ORIGIN_NAME)
    known = read_origin(folder)
    if known is None or _adds(origin, known):
        with translating_errors(path):
            try:
                _write_origin(path, origin, is_new=known is None)
            except FileNotFoundError:  # swept from another machine, which does not see our locks
                _write_origin(path, origin, is_new=known is None)
        known = read_origin(folder)
    if known is None:
        raise StorageError(f"{path} cannot be read back; does something else write or delete there?")
    return known


def renew(folder: str, origin: CopyOrigin) -> None:
    """Note that what the folder holds is a copy of `origin`, which was found to be what it says already."""
    path = os.path.join(folder, ORIGIN_NAME)
    with translating_errors(path):
        _write_origin(path, origin, is_new=False)


def folder_for(origin: CopyOrigin, folder: str) -> str:
    """The first folder for the files of `origin`, from `folder` downwards, that holds nothing of another one."""
    while (known := read_origin(folder)) is not None and not known.admits(origin):
        folder = subfolder_of(folder, origin)
    return folder


def subfolder_of(folder: str, origin: CopyOrigin) -> str:
    """The folder below `folder` for the files of `origin`, where `folder` itself holds those of another one."""
    name = origin.digest if origin.index is None else digest_of(f"{origin.digest}/{origin.index.identity}".encode())
    return os.path.join(folder, ".remotes", name)


def _adds(origin: CopyOrigin, known: CopyOrigin) -> bool:
    """Whether `origin` is what the folder says already, and says more of the index."""
    return known.admits(origin) and origin.index is not None and known.index != origin.index


def _write_origin(path: str, origin: CopyOrigin, *, is_new: bool) -> None:
    with contextlib.closing(UnplacedFile(path)) as unplaced:
        said: dict[str, Any] = {"remote": origin.remote, "digest": origin.digest}
        if origin.index is not None:
            said["index"] = asdict(origin.index)
        with open(unplaced.file, "w", encoding="utf-8", closefd=False) as file:
            file.write(json.dumps(said))
        # A damaged file claims nothing, so it may be replaced.
        if not is_new or (not unplaced.place_if_absent() and read_origin(os.path.dirname(path)) is None):
            unplaced.place()


def _index_in(found: dict[str, Any]) -> IndexVersion | None:
    said = found.get("index")
    if said is None:
        return None
    modified_s = said["modified_s"]
    version = said["version"]
    return IndexVersion(
        str(said["digest"]),
        int(said["n_bytes"]),
        None if version is None else str(version),
        None if modified_s is None else float(modified_s),
        bool(said["is_hashed"]),
    )
