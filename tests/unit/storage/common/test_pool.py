"""The pool of connections, each used by one thread at a time."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from streaming.errors import ObjectMissingError, StoreBusyError, StoreUnreachableError
from streaming.storage.common.pool import Pool

PATIENCE_S = 30.0


@dataclass
class Server:
    """A server that counts its connections and refuses more than a limit."""

    at_most: int = 1000
    is_down: bool = False
    n_open: int = 0
    n_made: int = 0
    most: int = 0
    broken: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self) -> int:
        with self.lock:
            if self.is_down or self.n_open >= self.at_most:
                raise StoreUnreachableError("refused")
            self.n_open += 1
            self.n_made += 1
            self.most = max(self.most, self.n_open)
            return self.n_made

    def close(self, _: int) -> None:
        with self.lock:
            self.n_open -= 1

    def pool(self, limit: int, *, queue_timeout_s: float = PATIENCE_S) -> Pool[int]:
        return Pool(
            self.connect,
            limit=limit,
            place="tape://host",
            queue_timeout_s=queue_timeout_s,
            close=self.close,
            is_alive=lambda connection: connection not in self.broken,
            harmless=(ObjectMissingError,),
        )


@pytest.mark.parametrize("at_most", [1000, 3, 1])
def test_threads_share_the_connections(at_most: int) -> None:
    """There are never more than the pool or the server allows, and one thread at a time uses each."""
    server = Server(at_most=at_most)
    pool, used = server.pool(5), set[int]()
    lock = threading.Lock()

    def use(_: int) -> None:
        with pool.borrowed() as connection:
            with lock:
                assert connection not in used
                used.add(connection)
            with lock:
                used.remove(connection)

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(use, range(2000)))
    assert server.most <= min(5, at_most)


def test_a_long_wait_ends_in_an_error() -> None:
    """The error is that of a busy store. A connection that is given back serves the next call."""
    pool = Server().pool(2, queue_timeout_s=0.1)
    first, _ = pool.take(), pool.take()
    with pytest.raises(StoreBusyError, match="none of 2 connections"):
        pool.take()
    pool.give_back(first)
    assert pool.take() == first


def test_a_server_that_is_down_is_not_waited_for() -> None:
    """Without other connections to wait for, the refusal is raised; once the server is back, the old limit holds."""
    server = Server(at_most=1)
    pool = server.pool(3, queue_timeout_s=0.1)
    only = pool.take()
    with pytest.raises(StoreBusyError):
        pool.take()
    server.is_down = True
    pool.drop(only)
    with pytest.raises(StoreUnreachableError):
        pool.take()
    server.is_down, server.at_most = False, 1000
    assert len({pool.take() for _ in range(3)}) == 3


def test_a_connection_that_broke_at_rest_is_replaced() -> None:
    """One that broke in use is dropped; a harmless error leaves it usable."""
    server = Server()
    pool, made = server.pool(1), itertools.count(1)

    def fail(error: Exception) -> None:
        with pool.borrowed():
            raise error

    with pytest.raises(ObjectMissingError):
        fail(ObjectMissingError("a"))
    with pool.borrowed() as connection:
        assert connection == next(made)
    with pytest.raises(EOFError):
        fail(EOFError())
    with pool.borrowed() as connection:
        assert connection == next(made)
    server.broken.add(connection)
    with pool.borrowed() as connection:
        assert connection == next(made)
    assert server.n_open == 1


def test_a_failed_log_in_takes_no_place() -> None:
    """A pool of one still serves the next call."""
    answers = iter([ValueError("no such user")])

    def connect() -> int:
        for error in answers:
            raise error
        return 7

    pool = Pool(connect, limit=1, place="tape://host", queue_timeout_s=0.1, close=lambda _: None)
    with pytest.raises(ValueError, match="user"):
        pool.take()
    assert pool.take() == 7
