"""How a store is asked: as whom, how fast, and how often again. Each is a wrapper of a store.

    Retrying(Budgeted(Paced(Authorized(store))))

1. `Authorized` opens the store with the credentials that hold now, and says when others are wanted.
2. `Paced` lets requests go at the pace of the store. A store that asks to slow down has not failed: the request waits
   and goes again, which is no attempt. It becomes an error when nothing else has come for as long as the user's
   time-out.
3. `Budgeted` has one file asked for in vain only as often as its account allows, whichever way it is asked for: whole,
   in parts or by range (`retry_budget`).
4. `Retrying` tries again what another try can mend, after a pause that doubles, with jitter. Attempts are counted over
   all requests of one need (`Attempts`). A missing or forbidden object is raised at once. A body that breaks off goes
   on where it stopped, by range and of the same version; that is no new attempt while it brings bytes.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

from streaming.errors import (
    CredentialsExpiredError,
    CredentialsWantedError,
    StorageError,
    StoreBusyError,
    StreamingError,
    TransferDamagedError,
)
from streaming.fetch.decide.rates import RateLimiter
from streaming.fetch.decide.transfers import Account, Transfer
from streaming.fetch.transfer.credential_cache import CredentialCache
from streaming.fetch.transfer.retry_budget import MENDABLE, RetryBudget, RetryBudgets
from streaming.storage.common.redaction import secrets_in, secrets_in_user, secrets_of_environment, without_secrets
from streaming.storage.open_stores import Stores
from streaming.storage.options import SECRET_OPTIONS
from streaming.storage.store import Content, ObjectFacts, Part, Store
from streaming.storage.url import Bucket, Folder, Location

T = TypeVar("T")

_RESUME_BYTES: Final = 1 << 18
"""A connection that brings less before it breaks off has failed."""


def backoff_s(attempt: int, *, rng: random.Random) -> float:
    """Seconds to pause after attempt number `attempt` (0 is the first): between half and all of 0.5 · 2ⁿ, below 30."""
    return min(30.0, 0.5 * 2.0**attempt) * rng.uniform(0.5, 1.0)


# --- progress and attempts


class TransferProgress:
    """Numbers that grow while something moves."""

    def __init__(self) -> None:
        self.is_wanted = True  # written by others: a transfer that nobody wants any more is given up
        self.n_bytes = 0
        self.n_attempts = 0
        self.began_s = time.monotonic()
        self._parts: list[TransferProgress] = []

    def include(self, part: TransferProgress) -> None:
        """Count the progress of something shared, which others may have begun, as this one's own."""
        self._parts.append(part)

    def reached(self, n_bytes: int) -> None:
        """`n_bytes` have moved in all."""
        self.n_bytes = n_bytes

    @property
    def token(self) -> str:
        """A text that differs from any earlier one if anything has moved."""
        everything = [self, *self._parts]
        return f"{sum(each.n_attempts for each in everything)}:{sum(each.n_bytes for each in everything)}"

    def left_s(self, n_bytes: int) -> float:
        """Seconds until `n_bytes` have come, at the rate so far."""
        n_left, passed_s = n_bytes - self.n_bytes, time.monotonic() - self.began_s
        return n_left * passed_s / self.n_bytes if self.n_bytes else float("inf")


class Attempts:
    """The attempts that one need has, over all requests that it takes. Thread-safe."""

    def __init__(
        self,
        shown: str,
        n_allowed: int,
        progress: TransferProgress,
        *,
        rng: random.Random,
        budget: RetryBudget | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """`shown` names in errors what is needed; `progress` counts the attempts made.

        `budget` counts the failures of all other needs of the same file. With `patience_s` more attempts are made until
        so many seconds have passed since the first failure, also at a store that asks to slow down.
        """
        self._shown, self._n_allowed, self._progress, self._rng = shown, n_allowed, progress, rng
        self._budget, self._patience_s = budget, patience_s
        self._lock = threading.Lock()
        self._n_failed = 0
        self._first_failed_s: float | None = None
        self._are_used_up = False

    def repeat(self, call: Callable[[], T]) -> T:
        """What `call` gives, tried again where another try can help.

        Raises the last error, with the number of attempts in its words; StorageError if none is allowed.
        """
        if self._n_allowed < 1:
            raise StorageError(
                f"{self._shown}: no attempt is allowed; set download_retry (of a writer: retry) to 1 or more"
            )
        while True:
            try:
                return call()
            except MENDABLE as error:
                self.failed(error)

    def failed(self, error: StorageError) -> None:
        """An attempt failed. Pause before the next, or raise the error if there is none."""
        now_s = time.monotonic()
        with self._lock:
            was_said = self._are_used_up  # on the way here
            self._n_failed += 1
            n_failed = self._n_failed
            if self._first_failed_s is None:
                self._first_failed_s = now_s
            passed_s = now_s - self._first_failed_s
            self._are_used_up = n_failed >= self._n_allowed and passed_s >= self._patience_s
            are_used_up = self._are_used_up
        final = None if self._budget is None else self._budget.failed(error)
        if final is not None:  # the other ways to this file have used up its attempts
            raise final from error
        is_throttled = isinstance(error, StoreBusyError) and error.is_throttled
        if was_said or (is_throttled and not self._patience_s):
            raise error
        if are_used_up:
            limit = f"in {passed_s:.0f} s" if self._patience_s else f"of {self._n_allowed}"
            raise type(error)(f"{error} (attempt {n_failed} {limit})") from error
        time.sleep(backoff_s(n_failed - 1, rng=self._rng))

    def began(self) -> None:
        """An attempt begins."""
        self._progress.n_attempts += 1

    def counted(self, items: Iterator[T]) -> Iterator[T]:
        """The same items; each shows a waiting client that a long list moves on."""
        for item in items:
            self._progress.n_bytes += 1
            yield item


# --- pace


class StoreGate:
    """The gate of one store: requests of all threads pass it at the store's pace."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limiter = RateLimiter()
        self._answered_s = time.monotonic()
        self.n_requests = 0
        self.n_refused = 0

    def enter(self, longest_s: float = float("inf")) -> float:
        """Wait until a request may go. Returns that moment, to be passed on with the outcome.

        Raises StoreBusyError if the store asked to be silent for longer than `longest_s`.
        """
        while True:
            with self._lock:
                now_s = time.monotonic()
                silent_s = self._limiter.silent_s(now_s)
                if silent_s > longest_s:
                    raise StoreBusyError(
                        f"the store asked to be silent for {silent_s:.0f} s, where the time-out allows "
                        f"{longest_s:.0f} s; try later, or ask it less often"
                    )
                slot = self._limiter.take_slot(now_s)
            while (wait_s := slot.moment_s - time.monotonic()) > 0:
                time.sleep(wait_s)
            with self._lock:
                now_s = time.monotonic()
                if slot.is_booked and self._limiter.may_go(now_s):
                    self.n_requests += 1
                    return now_s

    def answered(self, sent_s: float) -> None:
        """The store answered the request sent at `sent_s`, if only with an error of its own."""
        with self._lock:
            self._answered_s = time.monotonic()
            self._limiter.answered(self._answered_s, sent_s)

    def gave(self) -> None:
        """More bytes came of an answer: the store does something else than refuse."""
        self._answered_s = time.monotonic()

    def refused(self, sent_s: float, retry_after_s: float | None) -> float:
        """The store asked to slow down. Returns for how many seconds it has done nothing else."""
        with self._lock:
            now_s = time.monotonic()
            self.n_refused += 1
            self._limiter.refused(now_s, sent_s, retry_after_s)
            return now_s - self._answered_s


class StoreGates:
    """One gate for each store: for all remotes that share its limits, being in one bucket or on one host."""

    def __init__(self) -> None:
        self._gates: dict[str, StoreGate] = {}

    def gate(self, remote: Location) -> StoreGate:
        """The gate of the store of this remote, the same for all who ask."""
        key = "" if isinstance(remote, Folder) else f"{remote.scheme}://{remote.name}"
        known = self._gates.get(key)
        return self._gates.setdefault(key, StoreGate()) if known is None else known

    def numbers(self) -> dict[str, int]:
        """Requests to all stores, and how many of them were asked to slow down."""
        gates = list(self._gates.values())
        return {"requests": sum(gate.n_requests for gate in gates), "refused": sum(gate.n_refused for gate in gates)}


# --- wrappers


class _Wrapper:
    """A store that does everything through `_call`."""

    def _call(self, ask: Callable[[Store], T]) -> T:
        raise NotImplementedError

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        return self._call(lambda store: store.get(name, offset=offset, version=version))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        return self._call(lambda store: store.get_range(name, begin, end, version=version))

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        return self._call(lambda store: store.put(name, path, moved=moved))

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        return self._call(lambda store: store.list(prefix))

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return self._call(lambda store: store.head(name))

    def delete(self, name: str) -> None:
        """See Store."""
        return self._call(lambda store: store.delete(name))


class Authorized(_Wrapper):
    """The store of an account. Raises CredentialsWantedError where the user's function must be called first.

    No other error leaves it than the kinds of StreamingError, and none holds a secret of the account, though the
    store, which may be the user's own, repeated it.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        account: Account,
        cache: CredentialCache,
        secrets: Callable[[], Iterable[str]],
        shown: str,
    ) -> None:
        """`open_store` opens it with the credentials that hold now; `secrets` are those of the account."""
        self._open_store, self._account, self._cache = open_store, account, cache
        self._secrets, self._shown = secrets, shown

    def _call(self, ask: Callable[[Store], T]) -> T:
        with self._wanting():
            return ask(self._open_store())

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        content = super().get(name, offset=offset, version=version)
        return Content(content.facts, content.offset, self._chunks(content.chunks))

    def _chunks(self, chunks: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        with self._wanting():
            yield from chunks

    @contextlib.contextmanager
    def _wanting(self) -> Iterator[None]:
        key = self._account.credentials_key
        try:
            yield
        except CredentialsExpiredError as error:
            if not key:
                raise self._cleaned(error) from None
            self._cache.drop(key)
            raise CredentialsWantedError(key) from error
        except CredentialsWantedError:
            raise
        except StreamingError as error:
            cleaned = self._cleaned(error)
            if cleaned is error:
                raise
            raise cleaned from None
        except Exception as error:
            said = without_secrets(f"{type(error).__name__}: {error}"[:500], self._secrets())
            raise StorageError(f"{self._shown}: its store failed with {said}; that is a fault of the store") from None

    def _cleaned(self, error: StreamingError) -> StreamingError:
        said = str(error)
        clean = without_secrets(said, self._secrets())
        if clean == said:
            return error
        cleaned = copy.copy(error)
        cleaned.args = (clean,)
        return cleaned


class Paced(_Wrapper):
    """A store that is asked at its own pace."""

    def __init__(self, store: Store, gate: StoreGate, shown: str, throttled_s: float, *, rng: random.Random) -> None:
        """`throttled_s`: seconds in which nothing may come but requests to slow down. `shown` is for errors."""
        self._store, self._gate, self._shown, self._throttled_s, self._rng = store, gate, shown, throttled_s, rng

    def _call(self, ask: Callable[[Store], T]) -> T:
        gate, n_refused, began_s = self._gate, 0, time.monotonic()
        while True:
            try:
                sent_s = gate.enter(self._throttled_s)
            except StoreBusyError as error:
                raise _as_throttled(StoreBusyError(f"{self._shown}: {error}")) from None
            try:
                result = ask(self._store)
            except StoreBusyError as error:
                if not error.is_throttled:
                    gate.answered(sent_s)
                    raise
                silent_s = gate.refused(sent_s, error.retry_after_s)
                if min(silent_s, time.monotonic() - began_s) > self._throttled_s:
                    words = f"{error} (asked to slow down for {silent_s:.0f} s)"
                    raise _as_throttled(type(error)(words)) from error
                if error.retry_after_s is None:  # else nothing goes before it may
                    time.sleep(backoff_s(n_refused, rng=self._rng))
                n_refused += 1
            except StorageError:
                gate.answered(sent_s)
                raise
            else:
                gate.answered(sent_s)
                return result

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        content = super().get(name, offset=offset, version=version)
        return Content(content.facts, content.offset, self._chunks(content.chunks))

    def _chunks(self, chunks: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for chunk in chunks:
            self._gate.gave()
            yield chunk


class Budgeted(_Wrapper):
    """A store that is asked for one file, whose failures are counted over all ways to it."""

    def __init__(self, store: Store, budget: RetryBudget) -> None:
        self._store, self._budget = store, budget

    def _call(self, ask: Callable[[Store], T]) -> T:
        with self._budget.request():
            return ask(self._store)

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        part = super().get_range(name, begin, end, version=version)
        self._budget.came()
        return part

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        content = super().get(name, offset=offset, version=version)
        return Content(content.facts, content.offset, self._chunks(content.chunks))

    def _chunks(self, chunks: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        yield from chunks
        self._budget.came()


class Retrying(_Wrapper):
    """A store that is asked again, within the attempts of one need."""

    def __init__(self, store: Store, attempts: Attempts) -> None:
        self._store, self._attempts = store, attempts

    def _call(self, ask: Callable[[Store], T]) -> T:
        def attempt() -> T:
            self._attempts.began()
            return ask(self._store)

        return self._attempts.repeat(attempt)

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store. The bytes go on where a connection breaks off."""
        content = super().get(name, offset=offset, version=version)
        return Content(content.facts, content.offset, self._resumed(name, content))

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store. A list that breaks off begins anew, so all of it comes before any."""
        return iter(self._call(lambda store: list(self._attempts.counted(store.list(prefix)))))

    def _resumed(self, name: str, content: Content) -> Iterator[bytes | memoryview]:
        facts, at = content.facts, content.offset
        resumed_at = at
        while True:
            try:
                for chunk in content.chunks:
                    at += len(chunk)
                    yield chunk
                if at < facts.n_bytes:
                    raise TransferDamagedError(f"{name}: {at} bytes came of {facts.n_bytes}: the transfer was cut")
                return
            except MENDABLE as error:
                if at >= facts.n_bytes:
                    raise
                if at - resumed_at < _RESUME_BYTES:
                    self._attempts.failed(error)
                    self._attempts.began()
            resumed_at = at
            content = self._store.get(name, offset=at, version=facts.version)


def _as_throttled(error: StoreBusyError) -> StoreBusyError:
    """The error of a store that went on asking to slow down: trying again is no use."""
    error.is_throttled = True
    return error


# --- all together


class Counters:
    """What was done for each remote, counted by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, remote: Location, **numbers: int) -> None:
        """Add to the counts of a remote."""
        with self._lock:
            counts = self._counts.setdefault(str(remote), Counter())
            for name, number in numbers.items():
                counts[name] += number

    def of(self, remotes: Iterable[Location]) -> dict[str, dict[str, int]]:
        """The counts of these remotes: remote → name → number."""
        with self._lock:
            return {str(remote): dict(self._counts.get(str(remote), {})) for remote in remotes}

    def total(self) -> dict[str, int]:
        """The counts over all remotes."""
        with self._lock:
            return dict(sum(self._counts.values(), Counter()))


class StoreAccess:
    """Owns what requests to stores share: open stores, gates, credentials and counters. Thread-safe."""

    def __init__(self, stores: Stores, *, rng: random.Random | None = None) -> None:
        self._stores = stores
        self._rng = rng or random.Random()
        self.gates = StoreGates()
        self.credentials = CredentialCache()
        self.counters = Counters()
        self.retry_budgets = RetryBudgets()

    def open(self, remote: Location, account: Account, *, for_uploads: bool = False) -> Store:
        """The store of a remote with the credentials that hold now. Raises CredentialsWantedError if there are none."""
        options = json.loads(account.options)
        if account.credentials_key:
            options |= self.credentials.get(account.credentials_key)
        if for_uploads:
            return self._stores.open_for_uploads(remote, options)
        return self._stores.open(remote, account.timeout_s, options)

    def paced(self, remote: Location, account: Account, *, for_uploads: bool = False) -> Store:
        """The store of a remote, asked as this account and at the store's pace, once for each call."""
        open_now = partial(self.open, remote, account, for_uploads=for_uploads)
        secrets = partial(self._secrets, remote, account)
        authorized = Authorized(open_now, account, self.credentials, secrets, remote.shown)
        return Paced(authorized, self.gates.gate(remote), remote.shown, account.timeout_s, rng=self._rng)

    def _secrets(self, remote: Location, account: Account) -> Iterator[str]:
        """The secrets that a store of this account may repeat."""
        options = json.loads(account.options)
        if account.credentials_key and self.credentials.has(account.credentials_key):
            options |= self.credentials.get(account.credentials_key)
        yield from secrets_in(options, SECRET_OPTIONS)
        if isinstance(remote, Bucket):
            yield from secrets_in_user(remote.name.rpartition("@")[0])
        yield from secrets_of_environment(self._stores.environment)

    def attempts(
        self, shown: str, account: Account, progress: TransferProgress, *, patience_s: float = 0.0
    ) -> Attempts:
        """The attempts that an account allows for one need, and more until `patience_s` have passed."""
        return Attempts(shown, account.n_attempts, progress, rng=self._rng, patience_s=patience_s)

    def budgeted(self, transfer: Transfer, progress: TransferProgress) -> tuple[Store, Attempts]:
        """The paced store of one file, and the attempts for one way to it: counted over all ways."""
        account = transfer.account
        budget = self.retry_budgets.of(transfer.key, account)
        attempts = Attempts(transfer.shown, account.n_attempts, progress, rng=self._rng, budget=budget)
        return Budgeted(self.paced(transfer.key.remote, account), budget), attempts
