"""A bounded pool of connections, each used by one thread at a time and kept for the next call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from streaming.errors import StoreBusyError, StoreUnreachableError

T = TypeVar("T")

_N_LOGINS: Final = 4  # at once; servers refuse log-ins that come in bursts


class Pool(Generic[T]):
    """Owns the connections. A connection that is taken must be given back or dropped.

    A server that refuses one more connection while it serves others has a limit of its own: that becomes the pool's.
    """

    def __init__(
        self,
        connect: Callable[[], T],
        *,
        limit: int,
        place: str,
        queue_timeout_s: float,
        close: Callable[[T], None],
        is_alive: Callable[[T], bool] = lambda _: True,
        harmless: tuple[type[Exception], ...] = (),
    ) -> None:
        """Make an empty pool of at most `limit` connections to `place`, which is for messages.

        `queue_timeout_s` limits the wait for a free connection. `harmless` errors leave a connection usable; it is
        closed after any other.
        """
        self._connect, self._close, self._is_alive, self._harmless = connect, close, is_alive, harmless
        self._place, self._queue_timeout_s = place, queue_timeout_s
        self._changed = threading.Condition()
        self._logins = threading.Semaphore(_N_LOGINS)
        self._wanted = self._limit = limit
        self._n_open = 0  # at rest, taken, or being made
        self._resting: list[T] = []

    def take(self) -> T:
        """Take a connection out of the pool, or make one. Raises StoreBusyError if none comes free in time."""
        end_s = time.monotonic() + self._queue_timeout_s
        while True:
            connection = self._resting_or_slot(end_s)
            if connection is None:
                try:
                    with self._logins:
                        return self._connect()
                except StoreUnreachableError:
                    if not self._shrink():
                        raise
                except BaseException:
                    self._uncount()
                    raise
            elif self._is_alive(connection):
                return connection
            else:
                self.drop(connection)

    def give_back(self, connection: T) -> None:
        """Put a connection back; no request may be under way on it."""
        with self._changed:
            self._resting.append(connection)
            self._changed.notify()

    def drop(self, connection: T) -> None:
        """Close a connection: it is broken, or has requests under way whose answers are not wanted."""
        try:
            self._close(connection)
        finally:
            self._uncount()

    @contextlib.contextmanager
    def settled_on_error(self, connection: T) -> Iterator[None]:
        """Run a block; if it raises, give the connection back or drop it. Without an error it stays taken."""
        try:
            yield
        except self._harmless:
            self.give_back(connection)
            raise
        except BaseException:
            self.drop(connection)
            raise

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[T]:
        """Take a connection for a block."""
        connection = self.take()
        with self.settled_on_error(connection):
            yield connection
        self.give_back(connection)

    def _resting_or_slot(self, end_s: float) -> T | None:
        """Return a resting connection; None if the caller may make one, which is counted already."""
        with self._changed:
            while True:
                if self._resting:
                    return self._resting.pop()
                if self._n_open < self._limit:
                    self._n_open += 1
                    return None
                if not self._changed.wait(end_s - time.monotonic()):
                    raise StoreBusyError(
                        f"{self._place}: none of {self._limit} connections came free in {self._queue_timeout_s:.0f} s; "
                        "are transfers begun and not read to their end?"
                    )

    def _shrink(self) -> bool:
        """Uncount a connection that the server refused; return whether others are open, which then are the limit."""
        with self._changed:
            self._n_open -= 1
            if self._n_open:
                self._limit = self._n_open
            return self._n_open > 0

    def _uncount(self) -> None:
        with self._changed:
            self._n_open -= 1
            if not self._n_open:
                self._limit = self._wanted  # nobody is left to wait for
            self._changed.notify()
