"""Real processes around a fetcher, and a store that misbehaves on demand."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from streaming.errors import MissingExtraError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest
from streaming.testing.s3 import S3Server
from support.fetching import stream_config

PATIENCE_S = 30.0  # generous: nothing here is decided by time, it only ends a test that hangs


def started_s3_server() -> Iterator[S3Server]:
    """A real S3 server; the test is skipped without its package, but fails where CI is set."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(S3Server.started())
        except MissingExtraError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no S3 server: {error}")
        yield server


# --- a store that misbehaves


@dataclass(frozen=True)
class Fault:
    """What happens to one request, once."""

    status: int = 200
    code: str = ""  # of the error, as S3 says it
    cut_after: int = -1  # bytes of the body, then the connection is closed
    silent: bool = False  # no answer until the test ends
    flip: bool = False  # the first byte of the body comes changed


@dataclass
class FaultyStore:
    """The reading half of S3 on loopback, without signatures: `s3://bkt/<key>`."""

    port: int
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    rule: Callable[[str, bool], Fault | None] | None = None  # from key and whether a range is asked for, each time
    delay_s: float = 0.0  # before each answer
    drip_s: float = 0.0  # between pieces of 64 KiB
    n_gets: Counter[str] = field(default_factory=Counter)
    ranges: list[tuple[str, int]] = field(default_factory=list)
    asked_as: list[tuple[float, str, str]] = field(default_factory=list)  # moment, access key, session token
    _over: threading.Event = field(default_factory=threading.Event)

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[FaultyStore]:
        """A running one."""
        server = _Listener(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        store = cls(server.server_address[1])
        server.store = store  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield store
        finally:
            store._over.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def variables(self) -> dict[str, str]:
        """The environment that leads here."""
        return {
            "S3_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "NO_PROXY": "127.0.0.1",
        }

    def fill(self, prefix: str, n: int, n_bytes: int) -> list[bytes]:
        """Objects `prefix/0` … with contents that differ; the contents."""
        contents = [content(f"{prefix}/{i}", n_bytes) for i in range(n)]
        self.objects |= {f"{prefix}/{i}": whole for i, whole in enumerate(contents)}
        return contents


@functools.lru_cache(64)
def _etag(whole: bytes) -> str:
    return hashlib.md5(whole).hexdigest()


class _Listener(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Clients are killed here; that is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        store: FaultyStore = self.server.store  # type: ignore[attr-defined]
        key = self.path.partition("?")[0].removeprefix("/bkt/")
        store.n_gets[key] += 1
        identity = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        token = self.headers.get("x-amz-security-token", "")
        store.asked_as.append((time.time(), identity[1] if identity else "", token))
        faults = store.faults.get(key)
        fault = faults.pop(0) if faults else None
        if fault is None and store.rule is not None:
            fault = store.rule(key, "Range" in self.headers)
        fault = fault or Fault()
        with contextlib.suppress(OSError):
            if fault.silent:
                store._over.wait(PATIENCE_S)
                self.close_connection = True
            elif fault.status != 200 or key not in store.objects:
                store._over.wait(store.delay_s)
                body = f"<Error><Code>{fault.code}</Code></Error>".encode() if fault.code else b""
                self._send_head(fault.status if fault.status != 200 else 404, len(body))
                self.wfile.write(body)
            else:
                store._over.wait(store.delay_s)
                self._send_object(store, key, store.objects[key], fault)

    def _send_object(self, store: FaultyStore, key: str, whole: bytes, fault: Fault) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin = int(found[1]) if found else 0
        body = whole[begin : int(found[2]) + 1 if found and found[2] else None]
        if found:
            store.ranges.append((key, begin))
        if fault.flip:
            body = bytes([body[0] ^ 1]) + body[1:]
        about = {"ETag": f'"{_etag(whole)}"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
        if found:
            about["Content-Range"] = f"bytes {begin}-{begin + len(body) - 1}/{len(whole)}"
        self._send_head(206 if found else 200, len(body), about)
        if fault.cut_after >= 0:
            body, self.close_connection = body[: fault.cut_after], True
        for at in range(0, len(body), 1 << 16):
            if store.drip_s and store._over.wait(store.drip_s):
                return
            self.wfile.write(body[at : at + (1 << 16)])

    def _send_head(self, status: int, n_bytes: int, about: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(n_bytes))
        for name, value in (about or {}).items():
            self.send_header(name, value)
        self.end_headers()


# --- data and processes


def content(name: str, n_bytes: int) -> bytes:
    """Bytes that only this name has."""
    return hashlib.shake_128(name.encode()).digest(n_bytes)


def filled(folder: Path, n: int, n_bytes: int) -> list[FileRequest]:
    """Files `0` … in a new folder, and the needs that mean them as stream 0."""
    folder.mkdir(parents=True)
    for i in range(n):
        (folder / str(i)).write_bytes(content(str(i), n_bytes))
    return [FileRequest(0, str(i), n_bytes) for i in range(n)]


def client_of(remote: str | Path, local: Path, **config: Any) -> FetchClient:
    """A client of one stream, whose root is its cache."""
    return FetchClient(str(local), [stream_config(str(remote), str(local), **config)])


def temporaries(root: Path) -> list[Path]:
    """Half-written files below a cache."""
    return [path for path in root.rglob(".*.tmp") if ".streaming" not in path.parts]


def fetchers_of(root: Path) -> list[psutil.Process]:
    """The fetchers that serve this cache, in this process table."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if any("streaming.fetch.server.process" in word for word in command) and any(
                f'"{root}"' in w for w in command
            ):
                found.append(process)
    return found


def wait_until(what: str, true: Callable[[], object]) -> None:
    """Look until it is so."""
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def processes(
    method: str, target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]
) -> Iterator[list[multiprocessing.process.BaseProcess]]:
    """Processes that run `target`; killed at the end if they still do."""
    context = multiprocessing.get_context(method)
    started: list[multiprocessing.process.BaseProcess] = []
    try:
        for each in arguments:
            process = context.Process(target=target, args=each)  # type: ignore[attr-defined]
            process.start()
            started.append(process)
        yield started
    finally:
        for process in started:
            process.kill()
            process.join()


def run_all(method: str, target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Run them to their end; each must end well."""
    with processes(method, target, arguments) as started:
        for process in started:
            process.join(PATIENCE_S)
        assert [process.exitcode for process in started] == [0] * len(started)


def as_bytes(parts: Sequence[memoryview | None]) -> list[bytes | None]:
    """Ranges as they were given, to be compared."""
    return [None if part is None else bytes(part) for part in parts]


def read_and_compare(client: FetchClient, needs: Sequence[FileRequest], contents: Sequence[bytes]) -> None:
    """Every byte of these files, through the cache."""
    for need, expected in zip(needs, contents):
        assert Path(client.wait(need)).read_bytes() == expected


def read_and_delete(
    client: FetchClient, needs: Sequence[FileRequest], contents: Sequence[bytes], over: Any, n_read: Any, i: int
) -> None:
    """Read these files again and again, each time from the store, until told to stop; counts them in `n_read[i]`."""
    while not over.is_set():
        client.announce(f"reader-{os.getpid()}", needs)
        for need, expected in zip(needs, contents):
            path = client.wait(need)
            assert Path(path).read_bytes() == expected
            os.unlink(path)
            n_read[i] += 1
