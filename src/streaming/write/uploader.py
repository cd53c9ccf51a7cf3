"""Uploads of finished files to a writer's remote: a folder, or a place in an object store.

A conversion of hours hangs on each, so what may pass is tried again: in `retry` attempts at least, and until
UPLOAD_PATIENCE_S have passed since the first failure. What another attempt cannot mend fails at once.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from streaming.errors import FetchError, StoreUnreachableError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import Request
from streaming.storage.local import FolderStore
from streaming.storage.options import checked_options
from streaming.storage.store import Store
from streaming.storage.url import Folder, Location

UPLOAD_PATIENCE_S: Final = 300.0
_LONGEST_PAUSE_S: Final = 30.0


class Uploader(Protocol):
    """A place for finished files. Called from several threads at once."""

    def check(self) -> None:
        """Raise if the place cannot be reached or written. Called once, before anything is written."""

    def put(self, path: str, name: str) -> None:
        """Upload the local file `path` under the relative `name`; it must appear whole or not at all. Raises."""

    def close(self) -> None:
        """Close connections. Uploads under way fail. Doing it twice is harmless."""


class FolderUploader:
    """A remote that is a folder. It is made if it is missing."""

    def __init__(self, folder: str, *, retry: int, patience_s: float = UPLOAD_PATIENCE_S) -> None:
        self._store: Store = FolderStore(folder)
        self._folder = folder
        self._attempts, self._patience_s = retry, patience_s
        self._closed = threading.Event()

    def check(self) -> None:
        """Make the folder. Raises the kinds of `StorageError`."""
        FolderStore(self._folder).check_writable()

    def put(self, path: str, name: str) -> None:
        """Copy the file. Raises the kinds of `StorageError`: at once what no other attempt can mend."""
        first_failed_s = None
        for attempt in itertools.count(1):
            try:
                self._store.put(name, path)
                return
            except StoreUnreachableError:
                now_s = time.monotonic()
                first_failed_s = now_s if first_failed_s is None else first_failed_s
                if attempt >= self._attempts and now_s - first_failed_s >= self._patience_s:
                    raise
                if self._closed.wait(min(_LONGEST_PAUSE_S, 0.5 * 2.0 ** (attempt - 1))):
                    raise

    def close(self) -> None:
        """End the pauses between attempts: the uploads under way fail."""
        self._closed.set()


class _Ending:
    """Ends the waits of an uploader that is closed, each in the thread that waits. See WaitObserver."""

    def __init__(self) -> None:
        self.is_closed = False

    def pending(self) -> None:
        """Raise FetchError if the uploader is closed, so that no upload is tried again for nobody."""
        if self.is_closed:
            raise FetchError("the writer ended while a file was uploaded")

    def ended(self, request: Request, waited_s: float) -> None:
        """Nothing is counted."""


class FetcherUploader:
    """A remote in an object store. The fetcher uploads: this process may fork, so it must hold no store's client.

    The fetcher is one of its own, outside the folder that is written, which holds nothing but the dataset.
    """

    def __init__(self, remote: Location, *, retry: int, options: str) -> None:
        self._remote = remote
        self._attempts = retry
        self._options = options
        self._ending = _Ending()
        self._client = FetchClient(None, [], observer=self._ending)

    def check(self) -> None:
        """Ask the store for the place. Raises the kinds of `StorageError`."""
        self._client.check(self._remote, options=self._options)

    def put(self, path: str, name: str) -> None:
        """Upload the file. Raises the kinds of `StorageError`: at once what no other attempt can mend."""
        self._client.put(
            self._remote,
            path,
            name,
            attempts=self._attempts,
            options=self._options,
            patience_s=UPLOAD_PATIENCE_S,
        )

    def close(self) -> None:
        """Close the connections. The fetcher ends by itself."""
        self._ending.is_closed = True  # for uploads that begin only now, whose connections would be new
        self._client.close()


def open_uploader(remote: Location, *, retry: int, storage_options: Mapping[str, Any] | None = None) -> Uploader:
    """The uploader for a remote; `retry` is the least number of attempts per file.

    Raises OptionError for wrong options.
    """
    options = checked_options(remote, storage_options)
    if isinstance(remote, Folder):
        return FolderUploader(remote.path, retry=retry)
    return FetcherUploader(remote, retry=retry, options=json.dumps(options))
