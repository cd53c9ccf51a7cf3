"""A large file in parts, over several connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import Final

from streaming.storage.store import Part

PART_BYTES: Final = 8 << 20
MIN_BYTES: Final = 4 * PART_BYTES  # smaller files come in one


class Parts:
    """Which parts of a file have come. All are of one version: the first that comes says which."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begin anew: what came was wrong."""
        self._missing = [
            (begin, min(begin + PART_BYTES, self._n_bytes)) for begin in range(0, self._n_bytes, PART_BYTES)
        ][::-1]
        self._version: str | None = None

    def fetch_missing(
        self, fetch: Callable[[int, int, str | None], Part], connections: Executor, n_connections: int
    ) -> None:
        """Fetch what is missing with `fetch(begin, end, version)`, in this thread and others of `connections`.

        The first error ends it, when all that was begun has ended; what has come by then is not asked for again.
        """
        if self._missing and self._version is None:
            self._fetch_next(fetch)
        failed = threading.Event()

        def fetch_some() -> None:
            try:
                while not failed.is_set() and self._fetch_next(fetch):
                    pass
            except BaseException:
                failed.set()
                raise

        helpers = [connections.submit(fetch_some) for _ in range(min(n_connections, len(self._missing)) - 1)]
        try:
            fetch_some()
        finally:
            for helper in helpers:
                helper.cancel()
            wait(helpers)
        for helper in helpers:
            if not helper.cancelled():
                helper.result()

    def _fetch_next(self, fetch: Callable[[int, int, str | None], Part]) -> bool:
        with self._lock:
            if not self._missing:
                return False
            begin, end = self._missing.pop()
        try:
            part = fetch(begin, end, self._version)
        except BaseException:
            with self._lock:
                self._missing.append((begin, end))
            raise
        if self._version is None:
            self._version = part.facts.version
        return True
