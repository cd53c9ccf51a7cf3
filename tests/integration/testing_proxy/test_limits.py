"""Latency, bandwidth, request rates, and counts with many clients. Bounds on time are generous."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from streaming.testing import FaultProxy, ProxyLimits
from support.fetcher_world import PATIENCE_S, wait_until
from support.http_world import Reply, ask, ask_once, connected, raw_connection, scripted_server
from support.stores import contents

MB = 1 << 20


def test_latency_is_of_each_request_and_not_of_the_store(origin: FaultProxy) -> None:
    """Latencies of consecutive requests add up; those of simultaneous requests do not."""
    origin.set_limits(ProxyLimits(latency_s=0.2))
    began_s = time.monotonic()
    with connected(origin.port) as connection:
        assert [ask(connection, "/bkt/small").status for _ in range(5)] == [200] * 5
    assert 1.0 <= time.monotonic() - began_s < 20.0
    began_s = time.monotonic()
    with ThreadPoolExecutor(60) as pool:
        assert {reply.status for reply in pool.map(lambda _: ask_once(origin.port, "/bkt/small"), range(60))} == {200}
    assert 0.2 <= time.monotonic() - began_s < 11.0  # 12 s if each waited for another
    assert all((entry.ended_s or 0) - entry.began_s >= 0.2 for entry in origin.log())


def read_together(proxy: FaultProxy, n_clients: int, n_bytes: int) -> float:
    """Seconds until all of this many clients have read an object each."""
    objects = contents({f"part{number}": n_bytes for number in range(n_clients)})
    proxy.add_bytes("bkt", objects)
    began_s = time.monotonic()
    with ThreadPoolExecutor(n_clients) as pool:
        bodies = list(pool.map(lambda key: ask_once(proxy.port, f"/bkt/{key}").body, objects))
    took_s = time.monotonic() - began_s
    assert bodies == list(objects.values())
    return took_s


def test_bandwidth_is_one_for_all(origin: FaultProxy) -> None:
    """Eight clients together get what one gets alone, and never more than the limit."""
    origin.set_limits(ProxyLimits(bytes_per_s=20e6))
    for n_clients in (1, 8):
        took_s = read_together(origin, n_clients, 20_000_000 // n_clients)
        assert 0.95 < took_s < 20.0


def test_bandwidth_of_a_connection_is_its_own(origin: FaultProxy) -> None:
    """Sixteen clients get sixteen times what one gets."""
    origin.set_limits(ProxyLimits(connection_bytes_per_s=2e6))
    for n_clients in (1, 16):
        assert 0.95 < read_together(origin, n_clients, 2_000_000) < 15.0  # 16 s if they shared it


def test_connections_share_evenly(origin: FaultProxy) -> None:
    """When the first of 16 has finished, every other one has received nearly all of its bytes."""
    origin.set_limits(ProxyLimits(bytes_per_s=16e3))  # hardly anything comes before all have asked
    keys = {f"even{number}": MB for number in range(16)}
    origin.add_bytes("bkt", contents(keys))
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as readable:
        for key in keys:
            connection, _ = stack.enter_context(raw_connection(origin.port))
            connection.sendall(f"GET /bkt/{key} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            readable.register(connection, selectors.EVENT_READ)
        wait_until("all have asked", lambda: origin.counts().n_requests == len(keys))
        origin.set_limits(ProxyLimits(bytes_per_s=16e6))
        n_bytes = dict.fromkeys(keys, 0)
        while max(n_bytes.values()) < MB:
            for ready, _ in readable.select(PATIENCE_S):
                assert isinstance(ready.fileobj, socket.socket)
                ready.fileobj.recv(MB)
            n_bytes |= {path.rpartition("/")[2]: n for path, n in origin.counts().bytes_by_path.items()}
    assert min(n_bytes.values()) > 0.8 * MB


def test_uploads_have_the_same_bandwidth() -> None:
    """Uploads have a limit of their own direction."""

    def talk(incoming: BinaryIO, outgoing: BinaryIO) -> None:
        while incoming.readline().strip():
            pass
        incoming.read(4_000_000)
        outgoing.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with scripted_server(talk) as port, FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy:
        proxy.set_limits(ProxyLimits(bytes_per_s=4e6))
        began_s = time.monotonic()
        assert ask_once(proxy.port, "/x", "PUT", bytes(4_000_000)).status == 200
        assert 0.9 < time.monotonic() - began_s < 20.0


def test_a_limit_changes_what_is_under_way(origin: FaultProxy) -> None:
    """A body that would have taken an hour arrives at once when the limit is lifted."""
    origin.set_limits(ProxyLimits(bytes_per_s=40 * MB / 3600))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(ask_once, origin.port, "/bkt/large")
        wait_until("some bytes have come", lambda: origin.counts().n_bytes > 0)
        origin.set_limits(ProxyLimits())
        assert len(reading.result(PATIENCE_S).body) == 40 * MB


def test_requests_above_the_rate_are_refused(origin: FaultProxy) -> None:
    """They get 429 or another status, with Retry-After; requests below the rate pass."""

    def replies(n: int) -> list[Reply]:
        with connected(origin.port) as connection:
            return [ask(connection, "/bkt/small") for _ in range(n)]

    origin.set_limits(ProxyLimits(requests_per_s=5, retry_after_s=2))
    began_s = time.monotonic()
    got = replies(30)
    most = 5 + 5 * (time.monotonic() - began_s)
    refused = [reply for reply in got if reply.status == 429]
    assert 5 <= 30 - len(refused) <= most + 1
    assert {reply.headers["Retry-After"] for reply in refused} == {"2"}
    origin.set_limits(ProxyLimits(requests_per_s=0.01, refusal_status=503, retry_after_s=None))
    last = replies(2)[-1]
    assert (last.status, last.headers["Retry-After"], b"SlowDown" in last.body) == (503, None, True)
    origin.set_limits(ProxyLimits())
    assert {reply.status for reply in replies(100)} == {200}


def test_64_connections_at_once(origin: FaultProxy) -> None:
    """Each gets its own bytes, and the counts are those of all together."""
    sizes = {f"many{number}": 100_000 + number for number in range(64)}
    objects = contents(sizes)
    origin.add_bytes("bkt", objects)
    begun = threading.Barrier(64, timeout=PATIENCE_S)

    def read(key: str) -> bool:
        with connected(origin.port) as connection:
            begun.wait()
            whole = ask(connection, f"/bkt/{key}").body
            part = ask(connection, f"/bkt/{key}", Range="bytes=50000-").body
            begun.wait()
            return whole == objects[key] and part == whole[50_000:]

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(read, sizes))
    wait_until("all have left", lambda: origin.counts().open_connections == 0)
    counts = origin.counts()
    assert (counts.peak_connections, counts.n_connections) == (64, 64)
    assert counts.requests == {("GET", 200): 64, ("GET", 206): 64}
    assert counts.bytes_by_path == {f"/bkt/{key}": 2 * n_bytes - 50_000 for key, n_bytes in sizes.items()}
    assert counts.requests_by_path == {f"/bkt/{key}": 2 for key in sizes}
    assert (counts.n_requests, counts.n_bytes) == (128, sum(counts.bytes_by_path.values()))
    assert sorted(origin.ranges()) == sorted((f"/bkt/{key}", 50_000, None) for key in sizes)


def test_the_log_says_what_came_when(origin: FaultProxy) -> None:
    """Its clock is that of all processes. A reset empties counts and log, but open connections still count as open."""
    with connected(origin.port) as connection:
        began_s = time.monotonic()
        ask(connection, "/bkt/small?a=b", Range="bytes=-4")
        ask(connection, "/bkt/n%C3%B6", "HEAD")
        ended_s = time.monotonic()
        first, second = origin.log()
        assert (first.method, first.path, first.query, first.span) == ("GET", "/bkt/small", "a=b", (-4, None))
        assert (first.status, first.n_bytes, first.rule) == (206, 4, None)
        assert (second.method, second.path, second.status, second.n_bytes) == ("HEAD", "/bkt/nö", 404, 0)
        assert first.headers["range"] == "bytes=-4"
        assert first.connection == second.connection
        assert first.ended_s is not None
        assert began_s <= first.began_s <= first.ended_s <= second.began_s <= ended_s
        origin.reset_counts()
        counts = origin.counts()
        assert (counts.n_requests, counts.n_bytes, counts.requests, origin.log()) == (0, 0, {}, [])
        assert (counts.open_connections, counts.peak_connections, counts.n_connections) == (1, 1, 0)
