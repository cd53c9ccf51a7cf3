"""How often one file is asked for in vain, over all ways to it: whole, in parts and by range.

A file has one budget for each account that wants it. The rules:

1. A refusal that no other try can mend is the answer of every way. It is said again without a request: until a client
   has heard it and `_REST_S` have passed, and for `_UNHEARD_S` at most.
2. Failures that another try may mend are counted together, until something of the file comes. When the attempts of the
   account are used up, every way has failed, and the last error stands for `_REST_S`. A new job is told none of it.
3. While nothing of a file has come since it was last refused, requests for it go one after the other, so that none is
   made in vain while another finds out. One that is not answered within `_PATIENCE_S` is not waited for.
4. Once something has come, requests that are under way at the same time fail as one: a connection that breaks under
   many ranges is one failure.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from streaming.errors import (
    CredentialsWantedError,
    NoRoomError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.fetch.decide.transfers import Account, FileKey

MENDABLE: Final = (StoreBusyError, StoreUnreachableError, TransferDamagedError)
"""What another try can mend."""
_OURS: Final = (CredentialsWantedError, NoRoomError)
"""What says nothing of the file."""
_REST_S: Final = 2.0
_UNHEARD_S: Final = 60.0
_PATIENCE_S: Final = 2.0
_MAX_BUDGETS: Final = 1 << 16


class RetryBudget:
    """What came of the requests for one file by one account. Thread-safe."""

    def __init__(self, n_allowed: int, changed: threading.Condition, clock: Callable[[], float]) -> None:
        self._n_allowed, self._changed, self._clock = n_allowed, changed, clock
        self._is_good = False  # the last that was heard of the file is that it comes
        self._n_under_way = 0
        self._n_failed = self._round = 0  # failures that count: since something came; ever
        self._counted: weakref.WeakSet[StorageError] | None = None
        self._final: StorageError | None = None  # what every way is told
        self._until_s = 0.0

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A block that makes one request. Raises what every way to the file is told, if that stands."""
        begun = self._begin()
        try:
            yield
        except StorageError as error:
            self._ended(error, begun)
            raise
        except BaseException:
            self._ended(CredentialsWantedError(), begun)
            raise
        self._ended(None, begun)

    def came(self) -> None:
        """Bytes that were asked for have come, all of them."""
        self._n_failed = 0

    def failed(self, error: StorageError) -> StorageError | None:
        """A way failed, if only after its answer. The error that all ways are told; None if another attempt is left."""
        with self._changed:
            self._count(error, self._round)
            return self._standing()

    def heard(self) -> None:
        """A client was told: soon it may ask anew."""
        with self._changed:
            self._until_s = min(self._until_s, self._clock() + _REST_S)

    def forgive(self) -> None:
        """The next request is made, whatever came of those before."""
        with self._changed:
            self._final, self._n_failed = None, 0

    def _begin(self) -> int:
        with self._changed:
            gives_up_s = time.monotonic() + _PATIENCE_S
            while True:
                final = self._standing()
                if final is not None:
                    raise final
                left_s = gives_up_s - time.monotonic()
                if self._is_good or not self._n_under_way or left_s <= 0:
                    break
                self._changed.wait(left_s)
            self._n_under_way += 1
            return self._round

    def _ended(self, error: StorageError | None, begun: int) -> None:
        """A request that began in round `begun` has its answer."""
        with self._changed:
            self._n_under_way -= 1
            if error is None:
                self._is_good = True
            elif isinstance(error, MENDABLE):
                self._count(error, begun)
            elif not isinstance(error, _OURS):
                self._stand(copy.copy(error), _UNHEARD_S)
            self._changed.notify_all()

    def _count(self, error: StorageError, begun: int) -> None:
        """Requires the lock."""
        if self._counted is None:
            self._counted = weakref.WeakSet()
        if error in self._counted or self._standing() is not None:
            return
        self._counted.add(error)
        self._is_good = False
        if begun < self._round:  # it was under way when another failed
            return
        self._round += 1
        self._n_failed += 1
        if self._n_failed >= self._n_allowed:
            final = copy.copy(error)
            final.args = (f"{error} (attempt {self._n_failed} of {self._n_allowed})",)
            self._stand(final, _REST_S)

    def _stand(self, error: StorageError, stands_s: float) -> None:
        self._final, self._until_s = error, self._clock() + stands_s
        self._is_good = False

    def _standing(self) -> StorageError | None:
        """Requires the lock. What every way is told; None if that is nothing, or no longer."""
        if self._final is not None and self._clock() >= self._until_s:
            self._final, self._n_failed = None, 0
        # A copy, since one object that is raised in several threads collects the frames of all.
        return None if self._final is None else copy.copy(self._final)


class RetryBudgets:
    """The budgets of the files that were asked for last. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._known: OrderedDict[tuple[FileKey, Account], RetryBudget] = OrderedDict()

    def of(self, key: FileKey, account: Account) -> RetryBudget:
        """The budget of a file for an account."""
        with self._changed:
            budget = self._known.get((key, account))
            if budget is None:
                budget = self._known[key, account] = RetryBudget(account.n_attempts, self._changed, self._clock)
                if len(self._known) > _MAX_BUDGETS:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end((key, account))
            return budget

    def heard(self, key: FileKey, account: Account) -> None:
        """A client was told what came of this file."""
        budget = self._known.get((key, account))
        if budget is not None:
            budget.heard()

    def forgive(self, is_its: Callable[[FileKey], bool]) -> None:
        """A new job begins: it asks again for its files, as `is_its` tells, whatever others were told of them."""
        with self._changed:
            budgets = [budget for (key, _), budget in self._known.items() if is_its(key)]
        for budget in budgets:
            budget.forgive()

    def forget(self, key: FileKey, account: Account) -> None:
        """Begin anew: the file may be another one."""
        with self._changed:
            self._known.pop((key, account), None)
