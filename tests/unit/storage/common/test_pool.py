"""Connections that threads share one at a time."""

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
    """Counts its connections, of which it has at most so many."""

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
def test_threads_share_what_there_is(at_most: int) -> None:
    """Never more than allowed, by us or by the server; each by one thread at a time."""
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


def test_who_waits_too_long_is_told() -> None:
    """As of a busy store; what is given back is there for the next."""
    pool = Server().pool(2, queue_timeout_s=0.1)
    first, _ = pool.take(), pool.take()
    with pytest.raises(StoreBusyError, match="none of 2 connections"):
        pool.take()
    pool.give_back(first)
    assert pool.take() == first


def test_a_server_that_is_down_is_no_queue() -> None:
    """With nobody to wait for, the refusal is the answer; when it is back, all may come again."""
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


def test_what_broke_at_rest_is_replaced() -> None:
    """And what broke in use is dropped; a harmless error leaves it whole."""
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


def test_settings_that_are_wrong_take_no_place() -> None:
    """A pool of one can still be used by who comes next."""
    answers = iter([ValueError("no such user")])

    def connect() -> int:
        for error in answers:
            raise error
        return 7

    pool = Pool(connect, limit=1, place="tape://host", queue_timeout_s=0.1, close=lambda _: None)
    with pytest.raises(ValueError, match="user"):
        pool.take()
    assert pool.take() == 7
