"""A base for doubles of HTTP interfaces, on loopback. It records every request, and injects faults."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    """A request that has arrived."""

    method: str
    path: str  # decoded
    query: Mapping[str, str]
    headers: Message[str, str]  # names in any case
    body: bytes
    raw_path: str  # with the query, as it was sent

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int = -1  # close the connection after this many bytes of the body

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
        return cls(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})


class HttpDouble:
    """A server that runs as long as a block. Subclasses define its answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[Request] = []
        self.faults: list[tuple[str, Reply]] = []  # (part of "METHOD path", what that request gets), each used once
        self.lock = threading.Lock()

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[Self]:
        """Run a server for the block."""
        server = _Listener(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        double = cls(server.server_address[1])
        server.double = double
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield double
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, request: Request) -> Reply:
        """The answer to a request. Called for one request at a time."""
        raise NotImplementedError

    def replied(self, request: Request) -> Reply:
        with self.lock:
            self.requests.append(request)
            for i, (pattern, reply) in enumerate(self.faults):
                if pattern in f"{request.method} {request.path}":
                    del self.faults[i]
                    return reply if reply.cut_after < 0 else self._cut(self.answer(request), reply.cut_after)
            return self.answer(request)

    def asked(self, method: str, part: str) -> list[Request]:
        """The recorded requests of this method whose path holds `part`."""
        with self.lock:
            return [each for each in self.requests if each.method == method and part in each.path]

    def _cut(self, reply: Reply, n_bytes: int) -> Reply:
        return Reply(reply.status, reply.body, reply.headers, n_bytes)


def ranged(request: Request, content: bytes, headers: Mapping[str, str]) -> Reply:
    """The object, or the part of it that the request's Range asks for."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range") or "")
    if found is None:
        return Reply(200, content, headers)
    begin, end = int(found[1]), int(found[2]) + 1 if found[2] else len(content)
    if begin >= len(content):
        return Reply(416, b"", {"Content-Range": f"bytes */{len(content)}"})
    part = content[begin:end]
    return Reply(206, part, {**headers, "Content-Range": f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"})


class _Listener(ThreadingHTTPServer):
    request_queue_size = 128
    double: HttpDouble

    def handle_error(self, *_: object) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        request = Request(
            self.command,
            urllib.parse.unquote(parts.path),
            dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True)),
            self.headers,
            self._body(),
            self.path,
        )
        reply = self.server.double.replied(request)
        body = b"" if self.command == "HEAD" else reply.body
        with contextlib.suppress(OSError):
            self.send_response(reply.status)
            if reply.status not in (204, 304):
                self.send_header("Content-Length", str(len(reply.body)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if reply.cut_after >= 0:
                body, self.close_connection = body[: reply.cut_after], True
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while n_bytes := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(n_bytes))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815
