"""Scans what lies in the caches, at the right times and without holding anybody up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from typing import Final

from streaming.cache.files import Temporaries
from streaming.cache.inventory import CacheContents, Inventory
from streaming.cache.ledger import as_prefix, outermost_roots
from streaming.fetch.decide.space import SpaceBudget
from streaming.placement import delete_if_abandoned, is_temporary

_AGAIN_S: Final = 5.0
"""Seconds between scans under a limit: another fetcher, a user or another loader may write there too."""
_SHARE: Final = 20
"""Scans take at most one part in so many of the time."""


class CacheScan:
    """Owns what is known of indexes in the caches. `lock` guards the space budget; no scan is made while it is held."""

    def __init__(self, space: SpaceBudget, lock: threading.Lock, temporaries: Temporaries) -> None:
        self._space, self._lock, self._temporaries = space, lock, temporaries
        self._inventory = Inventory()
        self._scanning = threading.Lock()
        self._due_s = float("-inf")

    def is_due(self) -> bool:
        """Whether it is time to scan again. Requires the lock."""
        return self._space.is_limited and not self._scanning.locked() and time.monotonic() >= self._due_s

    def run(self, job: str | None = None) -> None:
        """Tell the space budget what lies below its roots; one thread at a time.

        `job`: whose limit is to be set. Many connect at once, and one scan is enough for all.
        """
        with self._scanning:
            began_s = time.monotonic()
            with self._lock:
                if job is not None and self._space.is_in_force(job):
                    return
                self._space.scan_begins()
                roots, copies, sources = self._space.roots, self._space.copies, self._space.sources
            seen = self._scan(roots, copies, sources)
            with self._lock:
                self._space.scan_ends(seen.files, seen.unreadable, seen.sources)
            self._due_s = time.monotonic() + max(_AGAIN_S, _SHARE * (time.monotonic() - began_s))

    def below(self, folders: Collection[str]) -> CacheContents:
        """What lies below these folders, limit or not: for a disk that is full."""
        with self._scanning:
            with self._lock:
                copies, sources = self._space.copies, self._space.sources
            return self._scan(folders, copies, sources)

    def _scan(self, roots: Collection[str], copies: Collection[str], sources: Collection[str]) -> CacheContents:
        ours = self._temporaries.paths()
        seen = self._inventory.scan(outermost_roots(roots), copies, sources)
        ours |= self._temporaries.paths()
        prefixes = tuple(map(as_prefix, seen.copies))
        for path in [path for path in seen.files if is_temporary(path)]:
            # Ours have reserved their space before they began; a dead writer's in a cache needs none.
            is_dead = path.startswith(prefixes) and delete_if_abandoned(path)
            if path in ours or is_dead or not os.path.lexists(path):
                del seen.files[path]
        return seen
