"""URL → store. Only the fetcher's process calls this: stores of the network must not live in a process that forks."""

from __future__ import annotations

import os
from typing import Final

from streaming.storage.local import FolderStore
from streaming.storage.objects import open_bucket
from streaming.storage.store import Store
from streaming.storage.url import Folder, parse_remote

_UPLOAD_S: Final = 300.0  # for one part of an upload, whose time-out counts the sending too


def open_store(remote: str, timeout_s: float) -> Store:
    """The store at `remote`, which gives up when nothing has come for a share of `timeout_s`."""
    location = parse_remote(remote)
    if isinstance(location, Folder):
        return FolderStore(location.path)
    return open_bucket(location, os.environ, timeout_s=timeout_s)


def open_store_for_uploads(remote: str) -> Store:
    """The store at `remote` for `put`."""
    location = parse_remote(remote)
    if isinstance(location, Folder):
        return FolderStore(location.path)
    return open_bucket(location, os.environ, timeout_s=_UPLOAD_S, for_uploads=True)


class Stores:
    """Owns the stores that are open, one per remote and time-out, for the life of the process."""

    def __init__(self) -> None:
        self._stores: dict[tuple[str, float | None], Store] = {}

    def open(self, remote: str, timeout_s: float) -> Store:
        """See `open_store`."""
        key = (remote, timeout_s)
        store = self._stores.get(key)
        if store is None:  # two threads may both make one; one of them is kept
            store = self._stores.setdefault(key, open_store(remote, timeout_s))
        return store

    def open_for_uploads(self, remote: str) -> Store:
        """See `open_store_for_uploads`."""
        store = self._stores.get((remote, None))
        if store is None:
            store = self._stores.setdefault((remote, None), open_store_for_uploads(remote))
        return store
