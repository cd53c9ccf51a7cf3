"""Uploads of finished files to a writer's remote: a folder, or a place in an object store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from streaming.errors import StorageError
from streaming.fetch.client import FetchClient
from streaming.storage.local import FolderStore
from streaming.storage.options import checked_options
from streaming.storage.url import Folder, Location


class Uploader(Protocol):
    """A place for finished files. Called from several threads at once."""

    def check(self) -> None:
        """Raise if the place cannot be reached or written. Called once, before anything is written."""

    def put(self, path: str, name: str) -> None:
        """Upload the local file `path` under the relative `name`; it must appear whole or not at all. Raises."""

    def close(self) -> None:
        """Close connections."""


class FolderUploader:
    """A remote that is a folder. It is made if it is missing."""

    def __init__(self, folder: str, *, retry: int) -> None:
        self._store = FolderStore(folder)
        self._attempts = retry

    def check(self) -> None:
        """Make the folder. Raises the kinds of `StorageError`."""
        self._store.check_writable()

    def put(self, path: str, name: str) -> None:
        """Copy the file, in `retry` attempts at most. Raises the kinds of `StorageError`."""
        for attempt in range(1, self._attempts + 1):
            try:
                self._store.put(name, path)
                return
            except StorageError:
                if attempt == self._attempts:
                    raise

    def close(self) -> None:
        """Do nothing: a folder needs no connection."""


class FetcherUploader:
    """A remote in an object store. The fetcher uploads: this process may fork, so it must hold no store's client.

    The fetcher is one of its own, outside the folder that is written, which holds nothing but the dataset.
    """

    def __init__(self, remote: Location, *, retry: int, options: str) -> None:
        self._remote = remote
        self._attempts = retry
        self._options = options
        self._client = FetchClient(None, [])

    def check(self) -> None:
        """Ask the store for the place. Raises the kinds of `StorageError`."""
        self._client.check(self._remote, options=self._options)

    def put(self, path: str, name: str) -> None:
        """Upload the file, in `retry` attempts at most. Raises the kinds of `StorageError`."""
        self._client.put(self._remote, path, name, attempts=self._attempts, options=self._options)

    def close(self) -> None:
        """Close the connections. The fetcher ends by itself."""
        self._client.close()


def open_uploader(remote: Location, *, retry: int, storage_options: Mapping[str, Any] | None = None) -> Uploader:
    """The uploader for a remote; `retry` is the number of attempts per file. Raises OptionError for wrong options."""
    options = checked_options(remote, storage_options)
    if isinstance(remote, Folder):
        return FolderUploader(remote.path, retry=retry)
    return FetcherUploader(remote, retry=retry, options=json.dumps(options))
