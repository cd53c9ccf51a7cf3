"""Without rules, a FaultProxy before another server changes neither requests nor answers."""

from __future__ import annotations

import threading
from typing import BinaryIO

import pytest

from streaming.testing import FaultProxy
from streaming.testing.s3 import S3Server
from support.fetcher_world import PATIENCE_S, content
from support.http_world import ask, ask_once, connected, raw_connection, read_head, run_obstore, scripted_server


def test_signed_requests_pass(before_s3: FaultProxy, s3_server: S3Server) -> None:
    """Small, large and multipart objects, ranges, lists and deletes reach a server that checks each signature."""
    found = run_obstore(
        """
import io
large = hashlib.shake_128(b"large").digest(23 << 20)
obstore.put(store, "proxied/small", b"abc")
obstore.put(store, "proxied/empty", b"")
obstore.put(store, "proxied/large", io.BytesIO(large), use_multipart=True, chunk_size=8 << 20, max_concurrency=3)
found = {
    "small": bytes(obstore.get(store, "proxied/small").bytes()).decode(),
    "large": bytes(obstore.get(store, "proxied/large").bytes()) == large,
    "range": bytes(obstore.get_range(store, "proxied/large", start=9 << 20, end=10 << 20)) == large[9 << 20 : 10 << 20],
    "listed": sorted([meta["path"], meta["size"]] for meta in obstore.list(store, "proxied").collect()),
    "deleted": said(lambda: (obstore.delete(store, "proxied/empty"), obstore.head(store, "proxied/empty"))),
    "missing": said(lambda: obstore.get(store, "proxied/nothing")),
}
""",
        s3_server.bucket,
        {**s3_server.variables(), **before_s3.variables()},
    )
    assert found["small"] == "abc"
    assert found["large"] is True
    assert found["range"] is True
    assert found["listed"] == [["proxied/empty", 0], ["proxied/large", 23 << 20], ["proxied/small", 3]]
    assert found["deleted"].startswith("FileNotFoundError")
    assert found["missing"].startswith("FileNotFoundError")
    assert s3_server.get("proxied/small") == b"abc"
    counts = before_s3.counts()
    assert counts.requests["GET", 206] == 1
    assert sum(n for (method, status), n in counts.requests.items() if method == "PUT" and status == 200) >= 5


def test_a_wrong_signature_is_the_server_s_to_refuse(before_s3: FaultProxy, s3_server: S3Server) -> None:
    """The server refuses it, so it does receive signatures and checks them."""
    variables = {**s3_server.variables(secret_key="wrong"), **before_s3.variables()}
    found = run_obstore('found = said(lambda: obstore.put(store, "x", b"abc"))', s3_server.bucket, variables)
    assert "SignatureDoesNotMatch" in found


@pytest.mark.parametrize(
    "head",
    [
        "GET /a%20b?x=%2F&y HTTP/1.1\r\nHost: some.host:81\r\nX-One: 1\r\nx-two:  2 \r\nX-One: 3\r\n",
        "HEAD / HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\nAuthorization: AWS4 x=y\r\n",
    ],
)
def test_heads_arrive_as_they_were_sent(head: str) -> None:
    """Line by line, with Host. Only headers about this connection are dropped."""
    arrived: list[str] = []

    def talk(incoming: BinaryIO, outgoing: BinaryIO) -> None:
        arrived.append(read_head(incoming))
        outgoing.write(b"HTTP/1.1 200 Fine\r\nX-B: b\r\nContent-Length: 0\r\nx-a: a\r\n\r\n")

    with (
        scripted_server(talk) as port,
        FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy,
        raw_connection(proxy.port) as (connection, answers),
    ):
        connection.sendall((head + "Connection: keep-alive\r\n\r\n").encode())
        answered = read_head(answers)
    assert arrived == [head.replace(":  2 \r\n", ": 2\r\n")]
    assert answered.split("\r\n")[:-1] == ["HTTP/1.1 200 Fine", "X-B: b", "x-a: a", "Content-Length: 0"]


BODY = content("body", 300_000)
CHUNKED = (
    b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in (BODY[:1], BODY[1:])) + b"0\r\nTrailer: t\r\n\r\n"
)


@pytest.mark.parametrize(
    ("method", "said", "status", "body"),
    [
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + BODY, 200, BODY),
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED, 200, BODY),
        ("GET", b"HTTP/1.1 200 OK\r\n\r\n" + BODY, 200, BODY),  # ends with the connection
        ("GET", b"HTTP/1.0 200 OK\r\n\r\n" + BODY, 200, BODY),
        (
            "GET",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            200,
            b"ok",
        ),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, b""),
        ("DELETE", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n", 200, b""),
        ("HEAD", b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n", 404, b""),
        ("GET", b"HTTP/1.1 500 \r\nContent-Length: 4\r\n\r\noops", 500, b"oops"),
    ],
)
def test_answers_of_every_form_arrive_whole(method: str, said: bytes, status: int, body: bytes) -> None:
    """With a length, in chunks, ended by the connection, or without a body; twice on one client connection."""

    def talk(incoming: BinaryIO, outgoing: BinaryIO) -> None:
        read_head(incoming)
        outgoing.write(said)

    with scripted_server(talk) as port, FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy:
        with connected(proxy.port) as connection:
            replies = [ask(connection, "/x", method) for _ in range(2)]
        counts = proxy.counts()
    assert [(reply.status, reply.body) for reply in replies] == [(status, body)] * 2
    if b"Content-Length: 300000" in said:
        assert replies[0].headers["Content-Length"] == "300000"
    assert (counts.requests, counts.n_connections) == ({(method, status): 2}, 1)
    assert counts.bytes_by_path.get("/x", 0) == 2 * len(body)


def echo(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer each request of a connection with its body, which has a length or comes in chunks."""
    while head := read_head(incoming):
        lines = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:])
        if "expect" in lines:
            outgoing.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b""
        if lines.get("transfer-encoding") == "chunked":
            while n_bytes := int(incoming.readline(), 16):
                body += incoming.read(n_bytes)
                incoming.readline()
            incoming.readline()
        else:
            body = incoming.read(int(lines.get("content-length", 0)))
        outgoing.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def test_bodies_of_requests_arrive_whole() -> None:
    """With a length and in chunks, large and empty, on one connection."""
    with scripted_server(echo) as port, FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy:
        with connected(proxy.port) as connection:
            bodies = [b"", b"x", BODY, iter([b"in ", b"chunks ", BODY]), b"after"]
            got = [ask(connection, "/x", "PUT", body).body for body in bodies]
        assert got == [b"", b"x", BODY, b"in chunks " + BODY, b"after"]
        assert proxy.counts().requests == {("PUT", 200): 5}


def test_a_client_that_waits_for_100_is_asked_for_its_body() -> None:
    """The server behind the proxy asks for it."""
    with (
        scripted_server(echo) as port,
        FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy,
        raw_connection(proxy.port) as (connection, answers),
    ):
        for _ in range(2):
            connection.sendall(b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
            assert read_head(answers) == "HTTP/1.1 100 Continue\r\n"
            connection.sendall(b"body")
            assert read_head(answers).startswith("HTTP/1.1 200")
            assert answers.read(4) == b"body"


def test_bytes_pass_as_they_come() -> None:
    """The client has the first half while the server still holds the second back, so no body is buffered whole."""
    has_half = threading.Event()

    def talk(incoming: BinaryIO, outgoing: BinaryIO) -> None:
        read_head(incoming)
        outgoing.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
        assert has_half.wait(PATIENCE_S)
        outgoing.write(b"rest")

    with (
        scripted_server(talk) as port,
        FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy,
        raw_connection(proxy.port) as (connection, answers),
    ):
        connection.sendall(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
        read_head(answers)
        assert answers.read(4) == b"half"
        has_half.set()
        assert answers.read(4) == b"rest"


def test_connections_to_the_server_are_kept_and_replaced() -> None:
    """One carries many requests of a client. If the server closes it in between, the client notices nothing."""
    connections: list[int] = []

    def talk(incoming: BinaryIO, outgoing: BinaryIO) -> None:
        connections.append(0)
        for _ in range(3):
            if not read_head(incoming):
                return
            connections[-1] += 1
            outgoing.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with scripted_server(talk) as port, FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy:
        with connected(proxy.port) as connection:
            assert {ask(connection, "/x").status for _ in range(9)} == {200}
        assert proxy.counts().n_connections == 1
    assert connections == [3, 3, 3]


def test_a_server_that_breaks_off_is_not_completed() -> None:
    """A body that the server cuts stays cut. No answer, or no server, is a 502 that says why."""

    def talk(incoming: BinaryIO, outgoing: BinaryIO) -> None:
        if read_head(incoming).startswith("GET /cut"):
            outgoing.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n")

    with scripted_server(talk) as port, FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy:
        with raw_connection(proxy.port) as (connection, answers):
            connection.sendall(b"GET /cut HTTP/1.1\r\nHost: h\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                answers.read()
        silent = ask_once(proxy.port, "/silent")
        assert (silent.status, b"UpstreamFailed" in silent.body) == (502, True)
    with FaultProxy.started(upstream="127.0.0.1:9") as proxy:
        assert b"127.0.0.1:9" in ask_once(proxy.port, "/x", "PUT", b"body").body


def test_nonsense_ends_the_connection_and_nothing_else(origin: FaultProxy) -> None:
    """Malformed requests reset their connection; the proxy goes on serving others."""
    for nonsense in (
        b"\x16\x03\x01 TLS?\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    ):
        with raw_connection(origin.port) as (connection, answers):
            connection.sendall(nonsense)
            with pytest.raises(ConnectionResetError):
                answers.read()
    with raw_connection(origin.port) as (connection, answers):
        connection.sendall(b"GET /bkt/small HTTP/1.0\r\n\r\n")
        assert read_head(answers).count("Connection: close") == 1
        assert answers.read() == content("small", 1000)
