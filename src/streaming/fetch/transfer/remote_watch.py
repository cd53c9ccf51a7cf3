"""Sees whether a remote is still the one whose index a cache folder copies, before anything of it is placed.

A dataset's index is written last. So an object that is younger than its index was either copied there in another order,
or belongs to a dataset that is being written anew. Only then is the index looked at again. Where a store does not say
when an object was written, the index is looked at every now and then.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from streaming.cache.origin import CopyOrigin, IndexVersion, digest_of, read_origin, renew
from streaming.errors import ObjectMissingError, RemoteChangedError, StoreCannotError
from streaming.fetch.decide.transfers import FileKey
from streaming.formats.names import INDEX_NAME
from streaming.storage.store import ObjectFacts, Store
from streaming.storage.url import Folder

_LOOK_AGAIN_S: Final = 30.0
"""Seconds between two looks at an index whose store does not say when objects were written."""
_CLOCKS_S: Final = 120.0
"""Seconds by which the clock of a store may be ahead of ours,"""
_CLOCKS_OF_FOLDERS_S: Final = 10.0
"""and that of a file system."""


class RemoteWatch:
    """Knows since when the jobs read each cache folder, and which indexes were found unchanged. Thread-safe."""

    def __init__(
        self, *, wall_s: Callable[[], float] = time.time, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall_s, self._clock_s = wall_s, clock_s
        self._lock = threading.Lock()
        self._origins: dict[str, CopyOrigin] = {}  # what the folders said
        self._restoring: set[str] = set()
        self._jobs: dict[str, tuple[float, frozenset[str]]] = {}
        self._seen: dict[tuple[str, str], tuple[float | None, float]] = {}  # see `_noted`

    def opened(self, job: str, folders: Sequence[str]) -> None:
        """A job reads into these cache folders, from now on if it was not known."""
        with self._lock:
            self._jobs.setdefault(job, (self._wall_s(), frozenset(folders)))

    def gone(self, job: str) -> None:
        """A job has ended."""
        with self._lock:
            self._jobs.pop(job, None)

    def check(self, key: FileKey, facts: ObjectFacts, *, store: Store) -> None:
        """Raise RemoteChangedError if the object of these facts belongs to another version than the folder's files.

        `store` has the object and the index.
        """
        origin = read_origin(key.local)
        if origin is None:
            with self._lock:
                origin = self._origins.get(key.local)
        if origin is None or origin.index is None:
            return
        index = origin.index
        with self._lock:
            self._origins[key.local] = origin
        newest_s, looked_s = self._noted(key.local, index)
        began_s, ahead_s = self._began_s(key.local), _CLOCKS_OF_FOLDERS_S if _is_folder(key) else _CLOCKS_S
        if newest_s is not None and began_s is not None:
            newest_s = max(newest_s, began_s - ahead_s)  # the index was looked at when the job began
        if facts.modified_s is not None and newest_s is not None:
            if facts.modified_s <= newest_s:
                return
        elif self._clock_s() - looked_s < _LOOK_AGAIN_S:
            return
        found = _changed_index(index, store)
        if found is not None:
            raise RemoteChangedError(
                f"{key.remote.shown} was written anew while this run reads it: {INDEX_NAME} is another one{found}, and "
                f"{key.name} may be, too. What was read so far is of the old version; start again to read the new one"
            )
        if facts.modified_s is not None and began_s is not None and facts.modified_s > began_s + ahead_s:
            raise RemoteChangedError(
                f"{key.remote.shown}/{key.name} was written{_at(facts.modified_s)}, while this run reads the dataset, "
                f"which began{_at(began_s)}: it seems to be written anew. What was read so far is of the old version; "
                "start again when the writer has finished"
            )
        with self._lock:
            self._seen[key.local, index.identity] = facts.modified_s, self._clock_s()

    @contextlib.contextmanager
    def restoring(self, folder: str) -> Iterator[bool]:
        """A block that puts back the index of a cache folder, if somebody has deleted it. Whether there is need to.

        What the folder said of itself is put back before. Raises the kinds of StorageError.
        """
        with self._lock:
            origin = self._origins.get(folder)
            is_mine = origin is not None and folder not in self._restoring
            if is_mine:
                self._restoring.add(folder)
        try:
            is_due = is_mine and not os.path.exists(os.path.join(folder, INDEX_NAME))
            if is_due and origin is not None and read_origin(folder) is None:
                renew(folder, origin)
            yield is_due
        finally:
            if is_mine:
                with self._lock:
                    self._restoring.discard(folder)

    def _noted(self, folder: str, index: IndexVersion) -> tuple[float | None, float]:
        """Until which moment of the store's clock the index is known not to have changed, and when it was looked at."""
        with self._lock:
            return self._seen.get((folder, index.identity), (index.modified_s, float("-inf")))

    def _began_s(self, folder: str) -> float | None:
        with self._lock:
            return min((began_s for began_s, folders in self._jobs.values() if folder in folders), default=None)


def _changed_index(index: IndexVersion, store: Store) -> str | None:
    """What is to be said of the index, if the store has another one now; None if it has the same."""
    try:
        try:
            facts = store.head(INDEX_NAME)
            if index.is_of(facts.n_bytes, facts.version, facts.modified_s):
                return None
        except StoreCannotError:
            pass
        content = store.get(INDEX_NAME)
        modified_s = content.facts.modified_s
        found = replace(index, digest=digest_of(b"".join(content.chunks)), modified_s=modified_s)
    except ObjectMissingError:
        return " or gone"
    return None if found.identity == index.identity else _at(modified_s)


def _is_folder(key: FileKey) -> bool:
    return isinstance(key.remote, Folder)


def _at(moment_s: float | None) -> str:
    if moment_s is None:
        return ""
    return f" at {datetime.datetime.fromtimestamp(moment_s, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
