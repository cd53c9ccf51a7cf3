"""Stores that ask to slow down."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from streaming.errors import StoreBusyError, StreamingError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest, Reason, Span
from streaming.storage.url import parse_remote
from streaming.testing import Fault, FaultProxy, FaultRule, LoggedRequest, ProxyLimits
from support.fetcher_world import as_bytes, client_of, content, wait_until
from support.fetching import read_ranges

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_FILES = 120
N_BYTES = 5000
PER_S = 20.0


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """The folder that the store gives."""
    folder = tmp_path / "store" / "d"
    folder.mkdir(parents=True)
    for i in range(N_FILES):
        (folder / str(i)).write_bytes(content(str(i), N_BYTES))
    return folder


def read_all(client: FetchClient, n_threads: int = 32) -> list[object]:
    """All files by 32 threads, whole or by range in turn; what went wrong."""
    wrong: list[object] = []

    def read(numbers: Sequence[int]) -> None:
        try:
            for i in numbers:
                need, expected = FileRequest(0, str(i), N_BYTES), content(str(i), N_BYTES)
                if i % 2:
                    found = Path(client.wait(need)).read_bytes()
                else:
                    (part,) = as_bytes(read_ranges(client, [Span(need, 0, N_BYTES)], Reason.NO_ROOM))
                    found = part or b""
                if found != expected:
                    wrong.append(f"{i} is wrong")
        except StreamingError as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(range(k, N_FILES, n_threads),)) for k in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def refused(log: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    return [request for request in log if request.status in (429, 503)]


@pytest.mark.parametrize(
    ("scheme", "status", "retry_after_s"), [("http", 429, 4), ("s3", 429, None), ("s3", 503, None)]
)
def test_a_store_with_a_limit_is_read_without_a_failure(
    tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, status: int, retry_after_s: int | None
) -> None:
    """Above 20 requests a second it refuses, once it refuses all for a while; nothing goes sooner than it told."""
    with FaultProxy.started(buckets={"bkt": str(tmp_path / "store")}) as proxy:
        for name, value in proxy.variables().items():
            monkeypatch.setenv(name, value)
        limits = ProxyLimits(requests_per_s=PER_S, refusal_status=status, retry_after_s=retry_after_s, latency_s=0.02)
        proxy.set_limits(limits)
        url = f"{proxy.endpoint}/bkt/d" if scheme == "http" else "s3://bkt/d"
        with client_of(url, tmp_path / "cache") as client:
            wrong: list[object] = []
            reading = threading.Thread(target=lambda: wrong.extend(read_all(client)))
            reading.start()
            wait_until("some have come", lambda: proxy.counts().n_requests > N_FILES // 2)
            headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
            proxy.set_rules(FaultRule(Fault(status=status, code="SlowDown", headers=headers), times=10))
            reading.join()
            assert wrong == []
            assert client.status()["failures"] == 0
            assert client.status()["stores"]["refused"] == len(refused(proxy.log()))
        log = proxy.log()
    assert len(refused(log)) < 2 * N_FILES  # each one twice at most, on average
    if retry_after_s is None:
        return
    for refusal in refused(log):
        assert refusal.ended_s is not None
        # What was on its way when it came is not to be called back: one request a connection, which may arrive late.
        too_soon = (refusal.ended_s + 0.5 * retry_after_s, refusal.ended_s + 0.95 * retry_after_s)
        early = [request.connection for request in log if too_soon[0] < request.began_s < too_soon[1]]
        assert len(early) == len(set(early))


def test_a_store_that_only_asks_to_slow_down_is_an_error_in_the_end(
    tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it has done nothing else for as long as the user's time-out."""
    with FaultProxy.started(buckets={"bkt": str(tmp_path / "store")}) as proxy:
        for name, value in proxy.variables().items():
            monkeypatch.setenv(name, value)
        proxy.set_rules(FaultRule(Fault(status=429)))
        began_s = time.monotonic()
        with (
            client_of("s3://bkt/d", tmp_path / "cache", download_timeout=3.0) as client,
            pytest.raises(StoreBusyError, match="asked to slow down for"),
        ):
            client.wait(FileRequest(0, "0", N_BYTES))
        assert time.monotonic() - began_s > 3.0


def test_who_is_told_to_wait_for_longer_than_he_may_does_not_wait(
    tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour, say: that is an error now, and it says for how long; another store is not concerned."""
    with FaultProxy.started(buckets={"bkt": str(tmp_path / "store")}) as proxy:
        for name, value in proxy.variables().items():
            monkeypatch.setenv(name, value)
        proxy.set_rules(FaultRule(Fault(status=429, headers={"Retry-After": "3600"}), times=1))
        with client_of(f"{proxy.endpoint}/bkt/d", tmp_path / "cache") as client:
            began_s = time.monotonic()
            for name in ("0", "1"):
                with pytest.raises(StoreBusyError, match=r"silent for (3600|35\d\d) s"):
                    client.wait(FileRequest(0, name, N_BYTES))
            assert client.read_object(parse_remote("s3://bkt/d"), "2") == content("2", N_BYTES)
            assert time.monotonic() - began_s < 60
        assert proxy.counts().n_requests == 2
