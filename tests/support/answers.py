"""A server that answers as a test says, and records requests: for what no real server does on demand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Question:
    """A request that has arrived."""

    method: str
    target: str  # as on the wire: a path, or a whole URL if the client takes this for a proxy
    headers: Mapping[str, str]  # by lower-case name
    body: bytes


@dataclass(frozen=True)
class Reply:
    """An answer. `cut_after`: close the connection after this many bytes of the body."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None
    silent: bool = False  # send nothing until the test ends
    states_length: bool = True


class AnswerServer:
    """One running server, made by `started`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.reply: Callable[[Question], Reply] = lambda _: Reply(404)
        self.asked: list[Question] = []
        self.over = threading.Event()
        self.n_connections = 0

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[AnswerServer]:
        """Run a server for the block. Tests set `reply`."""
        listener = _Listener(("127.0.0.1", 0), _Handler)
        server = listener.server = cls(listener.server_address[1])
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            listener.shutdown()
            listener.server_close()
            thread.join()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    server: AnswerServer

    def handle_error(self, *_: object) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.server.n_connections += 1  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        server: AnswerServer = self.server.server  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        question = Question(
            self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body
        )
        server.asked.append(question)
        reply = server.reply(question)
        if reply.silent:
            server.over.wait(PATIENCE_S)
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.states_length:
            self.send_header("Content-Length", str(len(reply.body)))
        else:
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[: reply.cut_after])
        if reply.cut_after is not None:
            self.close_connection = True

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):  # any method
            return self._answer
        raise AttributeError(name)
