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
        # An index may state any size, so the parts are counted and not listed.
        self._untried = 0  # the first byte of the parts that have not been tried
        self._failed: list[tuple[int, int]] = []
        self._came_first: tuple[int, int] | None = None  # of this version, out of turn
        self._version: str | None = None

    @property
    def _n_missing(self) -> int:
        return len(self._failed) + -(-(self._n_bytes - self._untried) // PART_BYTES)

    def _take(self) -> tuple[int, int] | None:
        """The next missing part; None if there is none."""
        if self._failed:
            return self._failed.pop()
        while self._untried < self._n_bytes:
            part = self._untried, min(self._untried + PART_BYTES, self._n_bytes)
            self._untried = part[1]
            if part != self._came_first:
                return part
        return None

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

        helpers = [connections.submit(fetch_some) for _ in range(min(n_connections, self._n_missing) - 1)]
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
        part = self._take()
        if part is None:
            return
        version = self._fetched(fetch, part, None)
        if version != self._version:  # what came before is of another version
            self.forget()
            self._came_first, self._version = part, version

    def _fetch_next(self, fetch: FetchPart) -> bool:
        with self._lock:
            part = self._take()
        if part is None:
            return False
        found = self._fetched(fetch, part, self._version)
        if found != self._version:
            self._put_back(part)
            raise TransferDamagedError(
                f"{self._shown} was replaced while it was read: bytes {part[0]} to {part[1]} are of version {found}, "
                f"those before of {self._version}"
            )
        return True

    def _fetched(self, fetch: FetchPart, part: tuple[int, int], version: str | None) -> str | None:
        """Fetch a part, which is missing again if that fails. The version that came."""
        try:
            return fetch(*part, version).facts.version
        except BaseException:
            self._put_back(part)
            raise

    def _put_back(self, part: tuple[int, int]) -> None:
        with self._lock:
            self._failed.append(part)
