"""Uploads of finished files to a writer's remote: a folder, or a place in an object store."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from streaming.errors import OptionError, StorageError
from streaming.fetch.client import FetchClient
from streaming.storage.local import FolderStore
from streaming.storage.options import checked_options
from streaming.storage.url import Location, parse_remote

_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*):/")


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


def scheme_of(place: str) -> str | None:
    """The scheme of a URL in lower case, None for a plain path.

    >>> scheme_of("s3://bucket/folder"), scheme_of("dbfs:/Volumes/x"), scheme_of("/data/x")
    ('s3', 'dbfs', None)
    """
    found = _SCHEME.match(place)
    return found["scheme"].lower() if found else None


def open_uploader(remote: str, *, retry: int, storage_options: Mapping[str, Any] | None = None) -> Uploader:
    """The uploader for a remote; `retry` is the number of attempts per file. Raises OptionError for another scheme."""
    scheme = scheme_of(remote)
    if scheme is None:
        checked_options(parse_remote(os.path.expanduser(remote)), storage_options)
        return FolderUploader(os.path.expanduser(remote), retry=retry)
    try:
        location = parse_remote(remote)  # its error names a scheme that only a later version can write to
    except OptionError as error:
        raise OptionError(f"Invalid Cloud provider prefix: {scheme}:// cannot be written to; {error}") from error
    return FetcherUploader(location, retry=retry, options=json.dumps(checked_options(location, storage_options)))
