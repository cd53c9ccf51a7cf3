"""Both ends of a proxy: plain clients, the client that our stores use, and scripted servers."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any, BinaryIO

from support.fetcher_world import PATIENCE_S


@dataclass(frozen=True)
class Reply:
    """An answer, read completely."""

    status: int
    headers: Message
    body: bytes


def connected(port: int) -> contextlib.closing[http.client.HTTPConnection]:
    """A kept-alive connection that the block closes."""
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S))


def ask(
    connection: http.client.HTTPConnection, path: str, method: str = "GET", body: Any = None, **headers: str
) -> Reply:
    """Send one request on this connection. Underscores in header names stand for hyphens."""
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return Reply(answer.status, answer.headers, answer.read())


def ask_once(port: int, path: str, method: str = "GET", body: Any = None, **headers: str) -> Reply:
    """Send one request on a connection of its own."""
    with connected(port) as connection:
        return ask(connection, path, method, body, **headers)


@contextlib.contextmanager
def raw_connection(port: int) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """A socket, and a file of what it receives, for HTTP written by hand."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection,
        connection.makefile("rb") as answers,
    ):
        yield connection, answers


def read_head(file: BinaryIO) -> str:
    """The lines before the next empty line; none at the end of the connection."""
    lines = []
    while (line := file.readline()) not in (b"\r\n", b""):
        lines.append(line.decode())
    return "".join(lines)


@contextlib.contextmanager
def scripted_server(talk: Callable[[BinaryIO, BinaryIO], None]) -> Iterator[int]:
    """Run a server that calls `talk(incoming, outgoing)` in a thread for each connection, then closes it; its port."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = PATIENCE_S

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                talk(self.rfile, self.wfile)  # type: ignore[arg-type]

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


_OBSTORE = """
import hashlib, json, os, sys, datetime
import obstore
from obstore.store import S3Store

given = json.loads(sys.argv[1])
store = S3Store(
    given["bucket"],
    endpoint=os.environ["S3_ENDPOINT_URL"],
    client_options={"allow_http": True, "read_timeout": datetime.timedelta(seconds=given["read_timeout_s"])},
    retry_config={"max_retries": given["n_retries"], "retry_timeout": datetime.timedelta(seconds=60)},
)

def said(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def run_obstore(
    code: str, bucket: str, variables: Mapping[str, str], *, n_retries: int = 0, read_timeout_s: float = 30.0
) -> Any:
    """Run `code`, which has a `store`, in a new process, as obstore must not be used where tests fork; its `found`.

    `said(call)` is the result of a call, or its error as a text.
    """
    given = {"bucket": bucket, "n_retries": n_retries, "read_timeout_s": read_timeout_s}
    script = f"{_OBSTORE}\n{code}\nprint(json.dumps(found))"
    run = subprocess.run(
        [sys.executable, "-c", script, json.dumps(given)],
        env=dict(variables),
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
