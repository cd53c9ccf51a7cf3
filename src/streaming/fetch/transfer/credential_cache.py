"""The credentials that users' functions have given to the fetcher."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from streaming.errors import CredentialsWantedError
from streaming.fetch.wire.credentials import Credentials

_EARLY_S: Final = 300.0
"""Seconds before their end at which credentials are renewed, or `_EARLY_SHARE` of their life if that is less."""
_EARLY_SHARE: Final = 1 / 8


class CredentialCache:
    """Owns the credentials that functions have given, by key. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.time, rng: random.Random | None = None) -> None:
        self._clock, self._rng = clock, rng or random.Random()
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Credentials, float]] = {}  # with the moment from which they are to be renewed

    def put(self, key: str, credentials: Credentials) -> None:
        """Keep these credentials in place of those before."""
        left_s = credentials.expires_s - self._clock()
        early_s = min(_EARLY_S, left_s * _EARLY_SHARE) * self._rng.uniform(1.0, 2.0)  # not all machines at once
        with self._lock:
            self._kept[key] = credentials, credentials.expires_s - early_s

    def get(self, key: str) -> Mapping[str, Any]:
        """The options that hold now. Raises CredentialsWantedError if there are none."""
        with self._lock:
            kept = self._kept.get(key)
        if kept is None or kept[0].expires_s <= self._clock():
            raise CredentialsWantedError(key)
        return kept[0].options

    def has(self, key: str) -> bool:
        """Whether there are credentials that hold now."""
        try:
            self.get(key)
        except CredentialsWantedError:
            return False
        return True

    def drop(self, key: str) -> None:
        """Forget credentials that the store says have expired."""
        with self._lock:
            self._kept.pop(key, None)

    def forget(self, job: str) -> None:
        """Forget the credentials of a job that has gone."""
        with self._lock:
            for key in [key for key in self._kept if key.startswith(f"{job}.")]:
                del self._kept[key]

    def due(self, keys: Sequence[str]) -> list[str]:
        """Those of these keys whose credentials are missing or will expire soon."""
        now_s = self._clock()
        with self._lock:
            return [key for key in keys if key not in self._kept or self._kept[key][1] <= now_s]
