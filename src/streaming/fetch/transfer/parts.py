"""Fetches a large file in parts, over several connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import Final

from streaming.errors import TransferDamagedError
from streaming.storage.store import Part

PART_BYTES: Final = 8 << 20
MIN_BYTES: Final = 4 * PART_BYTES
"""Smaller files come in one."""

FetchPart = Callable[[int, int, str | None], Part]
"""Fetches the bytes from begin to end, of this version (None: of any)."""


class Parts:
    """The parts of a file that have come, all of one version. `shown` names the file in errors."""

    def __init__(self, n_bytes: int, shown: str) -> None:
        self._n_bytes, self._shown = n_bytes, shown
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begin anew, since what came was wrong."""
        self._missing = [
            (begin, min(begin + PART_BYTES, self._n_bytes)) for begin in range(0, self._n_bytes, PART_BYTES)
        ][::-1]
        self._version: str | None = None

    def fetch_missing(self, fetch: FetchPart, connections: Executor, n_connections: int) -> None:
        """Fetch the missing parts, in this thread and others of `connections`.

        The first part comes alone and says which version the object has now; parts of another version are fetched
        again. The first error is raised when all parts that were begun have ended; those that came stay.
        """
        self._fetch_first(fetch)
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

    def _fetch_first(self, fetch: FetchPart) -> None:
        if not self._missing:
            return
        begin, end = self._missing[-1]
        version = fetch(begin, end, None).facts.version
        if version != self._version:
            self.forget()
        self._version = version
        self._missing.remove((begin, end))

    def _fetch_next(self, fetch: FetchPart) -> bool:
        with self._lock:
            if not self._missing:
                return False
            begin, end = self._missing.pop()
        try:
            found = fetch(begin, end, self._version).facts.version
            if found != self._version:
                raise TransferDamagedError(
                    f"{self._shown} was replaced while it was read: bytes {begin} to {end} are of version {found}, "
                    f"those before of {self._version}"
                )
        except BaseException:
            with self._lock:
                self._missing.append((begin, end))
            raise
        return True
