"""A store in memory: a small model of a store, for tests of code that uses one.

    store = MemoryStore()
    register_store("memory", "streaming.testing.memory:open_memory")  # in the fetcher, as memory://name

A store that is opened by URL lives as long as the process that opened it. This is the fetcher, which ends 2 s after
the last dataset or writer of its cache.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from streaming.errors import ObjectMissingError, StorageError, TransferDamagedError
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.url import Bucket

_CHUNK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class _SharedObjects:
    """The objects that all stores of one name share."""

    contents: dict[str, tuple[bytes, str]] = field(default_factory=dict)  # key → content and version
    lock: threading.Lock = field(default_factory=threading.Lock)
    versions: Iterator[int] = field(default_factory=itertools.count)


_named: dict[str, _SharedObjects] = {}


def open_memory(location: Bucket, settings: StoreSettings) -> MemoryStore:
    """An Opener. All URLs with the same authority open the same store."""
    return MemoryStore(location.prefix, objects=_named.setdefault(location.name, _SharedObjects()))


class MemoryStore:
    """Objects in this process. Thread-safe."""

    def __init__(self, prefix: str = "", *, objects: _SharedObjects | None = None) -> None:
        self._prefix = f"{prefix}/" if prefix else ""
        self._objects = objects if objects is not None else _SharedObjects()

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        content, facts = self._found(name, version)
        rest = memoryview(content)[offset:]
        chunks = (rest[at : at + _CHUNK_BYTES] for at in range(0, len(rest), _CHUNK_BYTES))
        return Content(facts, offset, chunks)

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        content, facts = self._found(name, version)
        if end > len(content):
            raise TransferDamagedError(f"{name} has {len(content)} bytes; bytes up to {end} were asked for")
        return Part(facts, content[begin:end])

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        with self._objects.lock:
            self._objects.contents[self._prefix + name] = content, f'"{next(self._objects.versions)}"'
        if moved is not None:
            moved(len(content))

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        below = f"{self._prefix}{prefix}/" if prefix else self._prefix
        with self._objects.lock:
            found = [(key, *kept) for key, kept in self._objects.contents.items() if key.startswith(below)]
        for key, content, version in found:
            yield ObjectFacts(key.removeprefix(self._prefix), len(content), version)

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return self._found(name, None)[1]

    def delete(self, name: str) -> None:
        """See Store."""
        with self._objects.lock:
            self._objects.contents.pop(self._prefix + name, None)

    def _found(self, name: str, version: str | None) -> tuple[bytes, ObjectFacts]:
        with self._objects.lock:
            kept = self._objects.contents.get(self._prefix + name)
        if kept is None:
            raise ObjectMissingError(f"{self._prefix}{name} does not exist")
        if version not in (None, kept[1]):
            raise TransferDamagedError(f"{self._prefix}{name} changed while it was read")
        return kept[0], ObjectFacts(name, len(kept[0]), kept[1])
