"""Connections that one thread at a time may use: at most so many, those at rest kept for the next call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from streaming.errors import StoreBusyError

T = TypeVar("T")


class Pool(Generic[T]):
    """Owns the connections. One that is taken is given back, or dropped."""

    def __init__(
        self,
        connect: Callable[[], T],
        *,
        limit: int,
        place: str,
        timeout_s: float,
        close: Callable[[T], None],
        is_alive: Callable[[T], bool] = lambda _: True,
        harmless: tuple[type[Exception], ...] = (),
    ) -> None:
        """`harmless` errors leave a connection as good as it was; after any other it is closed."""
        self._connect, self._close, self._is_alive, self._harmless = connect, close, is_alive, harmless
        self._limit, self._place, self._timeout_s = limit, place, timeout_s
        self._free_places = threading.Semaphore(limit)
        self._resting: list[T] = []  # appended and popped from many threads, each in one step

    def take(self) -> T:
        """A connection that nobody else has. StoreBusyError if none comes free in time."""
        if not self._free_places.acquire(timeout=self._timeout_s):
            raise StoreBusyError(
                f"{self._place}: none of {self._limit} connections came free in {self._timeout_s:.0f} s; read with "
                "fewer threads, or allow a longer download_timeout"
            )
        try:
            while self._resting:
                with contextlib.suppress(IndexError):
                    connection = self._resting.pop()
                    if self._is_alive(connection):
                        return connection
                    self._close(connection)
            return self._connect()
        except BaseException:
            self._free_places.release()
            raise

    def give_back(self, connection: T) -> None:
        """It rests between two requests."""
        self._resting.append(connection)
        self._free_places.release()

    def drop(self, connection: T) -> None:
        """It is broken, or answers are under way on it that nobody wants."""
        try:
            self._close(connection)
        finally:
            self._free_places.release()

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
