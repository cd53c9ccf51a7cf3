"""From URL to store. Only the fetcher opens stores: their network clients must not live in a process that forks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from streaming.errors import OptionError
from streaming.storage.local import FolderStore
from streaming.storage.registry import load_opener
from streaming.storage.schemes import scheme_named
from streaming.storage.settings import Opener, StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part, Store
from streaming.storage.url import Bucket, Folder, Location

_UPLOAD_S: Final = 300.0  # for one part of an upload, whose time-out counts the sending too
_N_OPEN: Final = 512  # credentials that are renewed every hour open new stores: old ones are let go


def open_store(location: Location, settings: StoreSettings) -> Store:
    """Open the store at `location`. Raises OptionError for wrong settings, MissingExtraError for a missing package."""
    if isinstance(location, Folder):
        if settings.options:
            raise OptionError(f"storage_options: {location.shown!r} is a folder, which takes none")
        return FolderStore(location.path)
    row = scheme_named(location.scheme)
    assert row is not None  # or the URL would not have parsed
    assert row.opener is not None
    opener: Opener = load_opener(location.scheme, row.opener)
    return opener(location, settings)


class Stores:
    """Owns the open stores of a process, one per remote and settings. Thread-safe."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` None takes a copy of this process's."""
        given = os.environ if environment is None else environment
        # Keys that come from files often have a line break at their end, which no header can hold.
        self.environment = {name: value.strip() for name, value in given.items()}
        self._lock = threading.Lock()
        self._stores: OrderedDict[tuple[Location, float, bool, bytes], Store] = OrderedDict()

    def open(self, remote: Location, timeout_s: float, options: Mapping[str, Any] | None = None) -> Store:
        """Return the store at `remote`; its requests fail when nothing has come for a share of `timeout_s`."""
        return self._open(remote, StoreSettings(options or {}, self.environment, timeout_s))

    def open_for_uploads(self, remote: Location, options: Mapping[str, Any] | None = None) -> Store:
        """Return the store at `remote` for `put`."""
        return self._open(remote, StoreSettings(options or {}, self.environment, _UPLOAD_S, for_uploads=True))

    def _open(self, remote: Location, settings: StoreSettings) -> Store:
        key = (remote, settings.timeout_s, settings.for_uploads, _digest(settings.options))
        with self._lock:
            store = self._stores.get(key)
            if store is not None:
                self._stores.move_to_end(key)
                return store
        opened = self._new(remote, settings)  # may ask the network; two threads may both make one, one of them is kept
        with self._lock:
            store = self._stores.setdefault(key, opened)
            while len(self._stores) > _N_OPEN:
                self._stores.popitem(last=False)
        return store

    def _new(self, remote: Location, settings: StoreSettings) -> Store:
        if isinstance(remote, Bucket) and remote.prefix:
            row = scheme_named(remote.scheme)
            if row is not None and row.is_shared:
                return PrefixStore(self._open(replace(remote, prefix=""), settings), remote.prefix)
        return open_store(remote, settings)


class PrefixStore:
    """The objects below a prefix of another store, so that all streams of one bucket share its client."""

    def __init__(self, whole: Store, prefix: str) -> None:
        self._whole, self._prefix = whole, f"{prefix}/"

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        content = self._whole.get(self._prefix + name, offset=offset, version=version)
        return dataclasses.replace(content, facts=dataclasses.replace(content.facts, name=name))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        part = self._whole.get_range(self._prefix + name, begin, end, version=version)
        return dataclasses.replace(part, facts=dataclasses.replace(part.facts, name=name))

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        self._whole.put(self._prefix + name, path, moved=moved)

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        for facts in self._whole.list((self._prefix + prefix).rstrip("/")):
            yield dataclasses.replace(facts, name=facts.name.removeprefix(self._prefix))

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return dataclasses.replace(self._whole.head(self._prefix + name), name=name)

    def delete(self, name: str) -> None:
        """See Store."""
        self._whole.delete(self._prefix + name)


def _digest(options: Mapping[str, Any]) -> bytes:
    """Return a key that differs between options and reveals no secret of theirs."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).digest() if options else b""
