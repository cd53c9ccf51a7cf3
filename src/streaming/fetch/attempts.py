"""Trying again: what is worth it, how often, and how long to pause before."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from streaming.errors import StorageError, StoreBusyError, StoreUnreachableError, TransferDamagedError

T = TypeVar("T")

_WORTH_IT: Final = (StoreBusyError, StoreUnreachableError, TransferDamagedError)


def backoff_s(attempt: int, *, rng: random.Random) -> float:
    """Seconds to pause after attempt number `attempt` (0 is the first): between half and all of 0.5 · 2ⁿ, below 30."""
    return min(30.0, 0.5 * 2.0**attempt) * rng.uniform(0.5, 1.0)


def attempted(what: str, n_attempts: int, call: Callable[[int], T], *, rng: random.Random) -> T:
    """What `call(attempt)` gives, tried up to `n_attempts` times where another try can help.

    The last error is raised, with the number of attempts in its words. `what` is for the error if none is allowed.
    """
    if n_attempts < 1:
        raise StorageError(f"{what}: no attempt is allowed; set download_retry (of a writer: retry) to 1 or more")
    for attempt in range(n_attempts):
        try:
            return call(attempt)
        except _WORTH_IT as error:
            if attempt + 1 == n_attempts:
                raise type(error)(f"{error} (attempt {attempt + 1} of {n_attempts})") from error
        time.sleep(backoff_s(attempt, rng=rng))
    raise AssertionError("unreachable")
