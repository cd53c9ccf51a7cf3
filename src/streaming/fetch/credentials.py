"""Credentials that the user's own function gives, and that expire.

The function lives in the user's process and is never sent anywhere. The fetcher keeps what it gave, says when it needs
more, and never uses what has expired; the client that hears so calls the function and sends what it returns.
"""

from __future__ import annotations

import datetime
import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from streaming.errors import CredentialsWantedError, OptionError

CredentialProvider: TypeAlias = Callable[[], Mapping[str, Any]]
"""Returns storage options, and `expires_at` if they expire: seconds since 1970, a datetime, or a text in ISO form."""

_EARLY_S: Final = 300.0  # before the end credentials are renewed, or an eighth of their life if that is less
_EARLY_SHARE: Final = 1 / 8


@dataclass(frozen=True, slots=True)
class Credentials:
    """Options for a store, and until when they hold (seconds since 1970; infinite if they do)."""

    options: Mapping[str, Any] = field(repr=False)
    expires_s: float = float("inf")


def provided(provider: CredentialProvider, title: str) -> Credentials:
    """What the user's function gives now. Raises OptionError for what is no credentials, and whatever it raises."""
    given = provider()
    if not isinstance(given, Mapping):
        raise OptionError(
            f"{title}: the function `credentials` must return a mapping of options, not {type(given).__name__}"
        )
    options = dict(given)
    expires = options.pop("expires_at", None)
    try:
        json.dumps(options)
    except (TypeError, ValueError):
        raise OptionError(
            f"{title}: the function `credentials` returned something else than texts and numbers among "
            f"{', '.join(sorted(map(str, options)))}"
        ) from None
    return Credentials(options, _seconds(expires, title))


def _seconds(expires: object, title: str) -> float:
    if expires is None:
        return float("inf")
    if isinstance(expires, str):
        try:
            expires = datetime.datetime.fromisoformat(expires)
        except ValueError:
            raise OptionError(f"{title}: the function `credentials` returned an expires_at that is no time") from None
    if isinstance(expires, datetime.datetime):
        return expires.timestamp()
    if isinstance(expires, int | float) and not isinstance(expires, bool):
        return float(expires)
    raise OptionError(f"{title}: expires_at must be seconds since 1970 or a datetime, not {type(expires).__name__}")


def purse_of(job: str, stream: int) -> str:
    """The name under which the credentials of a job's stream are kept."""
    return f"{job}.{stream}"


class Wallet:
    """What the users' functions have given, each under the name of its purse. Safe between threads."""

    def __init__(self, *, clock: Callable[[], float] = time.time, rng: random.Random | None = None) -> None:
        self._clock, self._rng = clock, rng or random.Random()
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Credentials, float]] = {}  # with the time from which on they are to be renewed

    def put(self, purse: str, credentials: Credentials) -> None:
        """Keep these; what was there before is forgotten."""
        left_s = credentials.expires_s - self._clock()
        early_s = min(_EARLY_S, left_s * _EARLY_SHARE) * self._rng.uniform(1.0, 2.0)  # not all machines at once
        with self._lock:
            self._kept[purse] = credentials, credentials.expires_s - early_s

    def get(self, purse: str) -> Mapping[str, Any]:
        """Options that hold now. Raises CredentialsWantedError."""
        with self._lock:
            kept = self._kept.get(purse)
        if kept is None or kept[0].expires_s <= self._clock():
            raise CredentialsWantedError(purse)
        return kept[0].options

    def has(self, purse: str) -> bool:
        """Whether there are some that hold now."""
        try:
            self.get(purse)
        except CredentialsWantedError:
            return False
        return True

    def drop(self, purse: str) -> None:
        """The store says that they have expired."""
        with self._lock:
            self._kept.pop(purse, None)

    def forget(self, job: str) -> None:
        """A job has gone."""
        with self._lock:
            for purse in [purse for purse in self._kept if purse.startswith(f"{job}.")]:
                del self._kept[purse]

    def wanted(self, purses: Sequence[str]) -> list[str]:
        """Those of these that are to be filled, or soon."""
        now_s = self._clock()
        with self._lock:
            return [purse for purse in purses if purse not in self._kept or self._kept[purse][1] <= now_s]
