"""Trying again: what is worth it, how often, and how long to pause before.

1. An error that another try cannot mend (missing, forbidden, a bad setting) is raised at once.
2. Others are tried again after a pause that doubles, with jitter, as often as the user allows.
3. A store that asks to slow down has not failed: such an answer is no attempt, it slows every request to that store
   (`pace`). It becomes an error when nothing else has come from the store for as long as the user's time-out.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from streaming.errors import StorageError, StoreBusyError, StoreUnreachableError, TransferDamagedError
from streaming.fetch.pace import Pace
from streaming.storage.url import Folder, parse_remote

T = TypeVar("T")

_WORTH_IT: Final = (StoreBusyError, StoreUnreachableError, TransferDamagedError)


def backoff_s(attempt: int, *, rng: random.Random) -> float:
    """Seconds to pause after attempt number `attempt` (0 is the first): between half and all of 0.5 · 2ⁿ, below 30."""
    return min(30.0, 0.5 * 2.0**attempt) * rng.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Patience:
    """What the user allows for one file: attempts, and seconds in which nothing comes but requests to slow down."""

    n_attempts: int
    throttled_s: float = 60.0


class Lane:
    """The way to one store: requests of all threads go through it, at the store's pace."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pace = Pace()
        self._answered_s = time.monotonic()
        self.n_requests = 0
        self.n_refused = 0

    def enter(self, longest_s: float = float("inf")) -> float:
        """Return when a request may go: the moment, to be told with its outcome.

        Raises StoreBusyError if the store told to be silent for longer than `longest_s`.
        """
        while True:
            with self._lock:
                now_s = time.monotonic()
                silent_s = self._pace.silent_s(now_s)
                if silent_s > longest_s:
                    raise StoreBusyError(
                        f"the store asked to be silent for {silent_s:.0f} s, where the time-out allows "
                        f"{longest_s:.0f} s; try later, or ask it less often"
                    )
                turn = self._pace.take_turn(now_s)
            while (wait_s := turn.moment_s - time.monotonic()) > 0:
                time.sleep(wait_s)
            with self._lock:
                now_s = time.monotonic()
                if turn.is_booked and self._pace.may_go(now_s):
                    self.n_requests += 1
                    return now_s

    def answered(self, sent_s: float) -> None:
        """The store gave what was asked for at `sent_s`, or an error of its own."""
        with self._lock:
            self._answered_s = time.monotonic()
            self._pace.answered(self._answered_s, sent_s)

    def gave(self) -> None:
        """Bytes came of what was asked for before: the store does something else than refuse."""
        self._answered_s = time.monotonic()

    def refused(self, sent_s: float, retry_after_s: float | None) -> float:
        """The store asked to slow down; for how many seconds it has done nothing else."""
        with self._lock:
            now_s = time.monotonic()
            self.n_refused += 1
            self._pace.refused(now_s, sent_s, retry_after_s)
            return now_s - self._answered_s


class Lanes:
    """One lane per store: for all remotes that share its limits, being in one bucket or on one host."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def lane(self, remote: str) -> Lane:
        """The lane to the store of this remote, the same for all who ask."""
        location = parse_remote(remote)
        key = "" if isinstance(location, Folder) else f"{location.scheme}://{location.name}"
        known = self._lanes.get(key)
        return self._lanes.setdefault(key, Lane()) if known is None else known

    def numbers(self) -> dict[str, int]:
        """Requests to all stores, and how many of them were told to slow down."""
        lanes = list(self._lanes.values())
        return {"requests": sum(lane.n_requests for lane in lanes), "refused": sum(lane.n_refused for lane in lanes)}


def attempted(what: str, patience: Patience, lane: Lane, call: Callable[[int], T], *, rng: random.Random) -> T:
    """What `call(attempt)` gives, tried again where another try can help.

    The last error is raised, with the number of attempts in its words. `what` is for the error if none is allowed.
    """
    if patience.n_attempts < 1:
        raise StorageError(f"{what}: no attempt is allowed; set download_retry (of a writer: retry) to 1 or more")
    attempt = n_refused = 0
    began_s = time.monotonic()
    while True:
        try:
            sent_s = lane.enter(patience.throttled_s)
        except StoreBusyError as error:
            raise StoreBusyError(f"{what}: {error}") from None
        try:
            result = call(attempt)
        except _WORTH_IT as error:
            if isinstance(error, StoreBusyError) and error.is_throttled:
                silent_s = lane.refused(sent_s, error.retry_after_s)
                if min(silent_s, time.monotonic() - began_s) > patience.throttled_s:
                    raise type(error)(f"{error} (asked to slow down for {silent_s:.0f} s)") from error
                if error.retry_after_s is None:  # else nothing goes before it may
                    time.sleep(backoff_s(n_refused, rng=rng))
                n_refused += 1
                continue
            lane.answered(sent_s)
            attempt += 1
            if attempt >= patience.n_attempts:
                raise type(error)(f"{error} (attempt {attempt} of {patience.n_attempts})") from error
        else:
            lane.answered(sent_s)
            return result
        time.sleep(backoff_s(attempt - 1, rng=rng))
