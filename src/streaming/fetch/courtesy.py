"""Whole files give way to samples that are needed at once: else a first batch shares the network with what follows."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

_LONGEST_S: Final = 3.0  # in the life of a transfer: it must not be put off for ever


class Courtesy:
    """Who is in a hurry, and who waits for them. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_hurrying = 0
        self._is_free = threading.Event()
        self._is_free.set()

    @contextlib.contextmanager
    def hurry(self) -> Iterator[None]:
        """A block in which others give way."""
        with self._lock:
            self._n_hurrying += 1
            self._is_free.clear()
        try:
            yield
        finally:
            with self._lock:
                self._n_hurrying -= 1
                if not self._n_hurrying:
                    self._is_free.set()

    def give_way(self, given_s: float) -> float:
        """Wait while anybody hurries; `given_s` is how long this transfer has waited so far, what it returns then."""
        if given_s >= _LONGEST_S or self._is_free.is_set():
            return given_s
        began_s = time.monotonic()
        self._is_free.wait(_LONGEST_S - given_s)
        return given_s + time.monotonic() - began_s
