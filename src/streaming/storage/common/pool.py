"""Connections that one thread at a time may use: at most so many, those at rest kept for the next call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from streaming.errors import StoreBusyError, StoreUnreachableError

T = TypeVar("T")

_N_LOGINS: Final = 4  # at once; servers turn away who come in crowds


class Pool(Generic[T]):
    """Owns the connections. One that is taken is given back, or dropped.

    A server that refuses one more while it serves others has a limit of its own: then theirs are waited for.
    """

    def __init__(
        self,
        connect: Callable[[], T],
        *,
        limit: int,
        place: str,
        patience_s: float,
        close: Callable[[T], None],
        is_alive: Callable[[T], bool] = lambda _: True,
        harmless: tuple[type[Exception], ...] = (),
    ) -> None:
        """`patience_s`: how long one may wait in the queue, which is not silence of the server.

        `harmless` errors leave a connection as good as it was; after any other it is closed.
        """
        self._connect, self._close, self._is_alive, self._harmless = connect, close, is_alive, harmless
        self._place, self._patience_s = place, patience_s
        self._changed = threading.Condition()
        self._logins = threading.Semaphore(_N_LOGINS)
        self._wanted = self._limit = limit
        self._n_open = 0  # at rest, taken, or being made
        self._resting: list[T] = []

    def take(self) -> T:
        """A connection that nobody else has. StoreBusyError if none comes free in time."""
        end_s = time.monotonic() + self._patience_s
        while True:
            connection = self._rested_or_place(end_s)
            if connection is None:
                try:
                    with self._logins:
                        return self._connect()
                except StoreUnreachableError:
                    if not self._leaves_to_others():
                        raise
                except BaseException:
                    self._leave()
                    raise
            elif self._is_alive(connection):
                return connection
            else:
                self.drop(connection)

    def give_back(self, connection: T) -> None:
        """It rests between two requests."""
        with self._changed:
            self._resting.append(connection)
            self._changed.notify()

    def drop(self, connection: T) -> None:
        """It is broken, or answers are under way on it that nobody wants."""
        try:
            self._close(connection)
        finally:
            self._leave()

    @contextlib.contextmanager
    def settled_on_error(self, connection: T) -> Iterator[None]:
        """A block after whose error the connection is given back or dropped; else it stays taken."""
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
        """A connection for a block."""
        connection = self.take()
        with self.settled_on_error(connection):
            yield connection
        self.give_back(connection)

    def _rested_or_place(self, end_s: float) -> T | None:
        """A connection that rested; None: one more may be made, and counts already."""
        with self._changed:
            while True:
                if self._resting:
                    return self._resting.pop()
                if self._n_open < self._limit:
                    self._n_open += 1
                    return None
                if not self._changed.wait(end_s - time.monotonic()):
                    raise StoreBusyError(
                        f"{self._place}: none of {self._limit} connections came free in {self._patience_s:.0f} s; are "
                        "transfers begun and not read to their end?"
                    )

    def _leaves_to_others(self) -> bool:
        """Take back the place of a connection that was refused; whether there are others to wait for."""
        with self._changed:
            self._n_open -= 1
            if self._n_open:
                self._limit = self._n_open
            return self._n_open > 0

    def _leave(self) -> None:
        with self._changed:
            self._n_open -= 1
            if not self._n_open:
                self._limit = self._wanted  # nobody is left to wait for
            self._changed.notify()
