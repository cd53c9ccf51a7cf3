"""Looking at what lies in the caches, at the right times and without holding anybody up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from typing import Final

from streaming.cache.files import Temporaries
from streaming.cache.inventory import CacheContents, Inventory, outermost_roots
from streaming.cache.ledger import as_prefix
from streaming.fetch.room import Room
from streaming.placement import delete_if_abandoned, is_temporary

_LOOK_AGAIN_S: Final = 5.0  # under a limit: another fetcher, a user or another loader may write there too
_SHARE: Final = 20  # looks take at most one part of so many of the time


class Watch:
    """Owns the knowledge of what indexes list. `lock` guards the room; no look is made with it."""

    def __init__(self, room: Room, lock: threading.Lock, temporaries: Temporaries) -> None:
        self._room, self._lock, self._temporaries = room, lock, temporaries
        self._inventory = Inventory()
        self._looking = threading.Lock()
        self._due_s = float("-inf")

    def is_due(self) -> bool:
        """Whether it is time to look again; with the lock."""
        return self._room.is_limited and not self._looking.locked() and time.monotonic() >= self._due_s

    def look(self, job: str | None = None) -> None:
        """Tell the room what lies below its roots; one thread at a time.

        For a job whose limit is to be set: many connect at once, and one look is enough for all.
        """
        with self._looking:
            began_s = time.monotonic()
            with self._lock:
                if job is not None and self._room.is_in_force(job):
                    return
                self._room.look_begins()
                roots, copies, sources = self._room.roots, self._room.copies, self._room.sources
            seen = self._see(roots, copies, sources)
            with self._lock:
                self._room.look_ends(seen.files, seen.unreadable, seen.sources)
            self._due_s = time.monotonic() + max(_LOOK_AGAIN_S, _SHARE * (time.monotonic() - began_s))

    def see(self, folders: Collection[str]) -> CacheContents:
        """What lies below these folders, and nothing else: for a disk that is full, limit or not."""
        with self._looking:
            with self._lock:
                copies, sources = self._room.copies, self._room.sources
            return self._see(folders, copies, sources)

    def _see(self, roots: Collection[str], copies: Collection[str], sources: Collection[str]) -> CacheContents:
        ours = self._temporaries.paths()
        seen = self._inventory.scan(outermost_roots(roots), copies, sources)
        ours |= self._temporaries.paths()
        copies = tuple(map(as_prefix, seen.copies))
        for path in [path for path in seen.files if is_temporary(path)]:
            # What is ours was promised room before it began; what a dead writer left in a cache needs none.
            is_dead = path.startswith(copies) and delete_if_abandoned(path)
            if path in ours or is_dead or not os.path.lexists(path):
                del seen.files[path]
        return seen
