"""The objects of an origin: files and bytes by key."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of an open file, which can be sent without being read."""

    file: FileIO
    begin: int
    n_bytes: int

    def __len__(self) -> int:
        return self.n_bytes

    def __getitem__(self, wanted: slice) -> FileSlice:
        begin, end, _ = wanted.indices(self.n_bytes)
        return FileSlice(self.file, self.begin + begin, end - begin)

    def read(self) -> bytes:
        """The bytes. Raises ConnectionAbortedError if the file was truncated."""
        content = os.pread(self.file.fileno(), self.n_bytes, self.begin)
        if len(content) < self.n_bytes:
            raise ConnectionAbortedError("a file was truncated while it was served")
        return content


@dataclass(frozen=True, slots=True)
class OriginObject:
    """The current version of one object."""

    key: str
    etag: str
    modified_s: float
    content: FileSlice


class OriginBucket:
    """The files of a folder, by relative path, and added objects."""

    def __init__(self, folder: str | None = None) -> None:
        self.added: dict[str, str | FileSlice] = {}
        """Key → path of a file, or bytes."""
        self._folder = folder

    def find(self, key: str) -> OriginObject | None:
        """The object with this key."""
        added = self.added.get(key)
        if isinstance(added, FileSlice):
            return OriginObject(key, f'"{added.begin:x}-{len(added):x}"', 0.0, added)
        if added is None and (self._folder is None or ".." in key.split("/") or key.startswith("/")):
            return None
        path = added or os.path.join(self._folder or "", key)
        try:
            facts = os.stat(path)
            etag = f'"{facts.st_mtime_ns:x}-{facts.st_ino:x}-{facts.st_size:x}"'
            return OriginObject(key, etag, facts.st_mtime, FileSlice(_opened(path, etag), 0, facts.st_size))
        except OSError:  # also for a folder
            return None

    def list(self, prefix: str) -> Iterator[OriginObject]:
        """The objects whose keys begin with the prefix, sorted by key."""
        keys = set(self.added)
        for folder, _, names in os.walk(self._folder) if self._folder is not None else ():
            keys |= {os.path.relpath(os.path.join(folder, name), self._folder) for name in names}
        for key in sorted(keys):
            if key.startswith(prefix) and (found := self.find(key)) is not None:
                yield found


@functools.lru_cache(64)
def _opened(path: str, etag: str) -> FileIO:
    """The open file; `etag` makes each version an entry of its own."""
    return open(path, "rb", buffering=0)
