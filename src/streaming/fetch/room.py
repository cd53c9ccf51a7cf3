"""Room for files: what lies below the cache folders, kept in step with the disk."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from streaming.cache.files import Temporaries, table_name
from streaming.cache.inventory import Inventory, known_roots
from streaming.cache.shelf import Lying, Need, Shelf
from streaming.fetch.transfer import FileTask

_LOOK_AGAIN_S: Final = 5.0  # under a limit: another fetcher, a user or another loader may write there too


@dataclass(frozen=True, slots=True)
class Leaving:
    """Files that go, and which files of readers they are, as far as known."""

    paths: list[str]
    tasks: list[FileTask]


class Room:
    """Owns the shelf: which files lie below the roots of this fetcher's jobs. The engine's lock guards every call.

    `look` and `delete` touch the disk and are called without the lock.
    """

    def __init__(self, need_of: Callable[[FileTask], Need], temporaries: Temporaries) -> None:
        self._need_of_task = need_of
        self._temporaries = temporaries
        self._shelf = Shelf(self._need_of)
        self._inventory = Inventory()
        self._looking = threading.Lock()
        self._tasks: dict[str, FileTask] = {}  # path → what lies there, as far as readers told
        self._limits: dict[str, int] = {}  # job → bytes
        self._roots: dict[str, dict[str, None]] = {}  # job under a limit → its cache roots
        self._copies: dict[str, dict[str, None]] = {}  # and the folders in which it keeps copies
        self._looked_s = float("-inf")
        self._used_folders: list[str] = []  # without a limit nobody says what of these is needed: all of it
        self.n_evicted = 0

    # --- jobs

    @property
    def is_limited(self) -> bool:
        """Whether any job set a limit."""
        return bool(self._limits)

    @property
    def n_bytes(self) -> int:
        """What lies on disk and is promised, below the roots that are counted."""
        return self._shelf.n_bytes

    def limit(self, job: str, limit_bytes: int, roots: Sequence[str], copies: Sequence[str]) -> None:
        """A job with a limit begins: all that lies below its roots counts. The smallest limit of all jobs holds."""
        self._limits[job] = limit_bytes
        self._roots[job] = dict.fromkeys(roots)
        self._copies[job] = dict.fromkeys(copies)
        self._shelf.limit_bytes = min(self._limits.values())

    def lift(self, job: str) -> None:
        """A job has gone."""
        if self._limits.pop(job, None) is not None:
            del self._roots[job], self._copies[job]
            self._shelf.limit_bytes = min(self._limits.values(), default=None)

    def known(self, tasks: Sequence[tuple[FileTask, bool]], now_s: float) -> None:
        """Readers told of files; whether each is there."""
        for task, present in tasks:
            self._tasks[task.path] = task
            if present:
                self._shelf.used(task.path, now_s)

    def awaited(self, task: FileTask, now_s: float) -> None:
        """Somebody who waits for this file is told that it is there."""
        self._tasks[task.path] = task
        self._shelf.came(task.path, now_s)

    # --- room

    def take(self, task: FileTask, place: int) -> Leaving | None:
        """Room for a file: what must be deleted before it comes, None if there is no room."""
        leaving = self._shelf.promise(task.path, task.disk_bytes, place, time.time())
        return None if leaving is None else self._left(leaving)

    def free(self, task: FileTask, place: int, used_folders: Sequence[str]) -> Leaving:
        """What is to be deleted because the disk is full; of these folders only under a limit."""
        self._used_folders = [] if self._limits else [folder.rstrip("/") + "/" for folder in used_folders]
        try:
            return self._left(self._shelf.free(task.disk_bytes, place, time.time()))
        finally:
            self._used_folders = []

    def ended(self, task: FileTask, *, is_there: bool, is_awaited: bool) -> None:
        """A transfer ended; `is_awaited`: somebody waits for it, and will open the file now."""
        self._shelf.settle(task.path)
        if is_there:
            now_s = time.time()
            self._tasks[task.path] = task
            self._shelf.put(task.path, Lying(max(0, task.need.n_bytes), now_s, may_go=task.need.n_bytes >= 0))
            if is_awaited:
                self._shelf.came(task.path, now_s)
            self._shelf.remove(os.path.join(task.local, table_name(task.name)))
            if task.config.keep_zip and task.need.zip_name is not None:
                path = os.path.join(task.local, task.need.zip_name)
                self._shelf.put(path, Lying(task.need.zip_bytes, now_s, may_go=True))

    def table_came(self, path: str, n_bytes: int) -> None:
        """An offset table was kept."""
        self._shelf.put(path, Lying(n_bytes, time.time(), may_go=True))

    def _left(self, paths: list[str]) -> Leaving:
        self.n_evicted += len(paths)
        tasks = [self._tasks.pop(path, None) for path in paths]
        return Leaving(paths, [task for task in tasks if task is not None])

    def _need_of(self, path: str) -> Need:
        if any(map(path.startswith, self._used_folders)):
            return Need(None, True)
        task = self._tasks.get(path)
        return Need(None, False) if task is None else self._need_of_task(task)

    # --- the disk

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to look at the disk again."""
        return bool(self._limits) and not 0 <= now_s - self._looked_s < _LOOK_AGAIN_S

    def look(self, lock: threading.Lock, *, all_roots: Sequence[str] = ()) -> None:
        """See what lies on disk; one thread at a time, others return at once. Without the lock.

        `all_roots`: these too, for a disk that is full though nobody set a limit.
        """
        if not self._looking.acquire(blocking=False):
            return
        try:
            with lock:
                roots = {root: None for roots in self._roots.values() for root in roots} | dict.fromkeys(all_roots)
                copies = {folder: None for folders in self._copies.values() for folder in folders}
                self._shelf.look_begins()
                self._looked_s = time.time()
            found = self._inventory.look(known_roots(roots), copies, passed_over=self._temporaries.paths())
            with lock:
                self._shelf.look_ends(found)
        finally:
            self._looking.release()


def delete(paths: Sequence[str]) -> None:
    """Delete files; what is gone already is gone. An offset table goes with its file."""
    for path in paths:
        folder, name = os.path.split(path)
        for each in (path, os.path.join(folder, table_name(name))):
            with contextlib.suppress(OSError):
                os.unlink(each)
