"""Each fault, as a plain client and obstore see it, and as it is counted."""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import pytest

from streaming.testing import Fault, FaultProxy, FaultRule
from streaming.testing.s3 import S3Server
from support.fetcher_world import PATIENCE_S, content, wait_until
from support.http_world import ask, ask_once, connected, raw_connection, read_head, run_obstore, scripted_server
from support.stores import contents

SMALL = content("small", 1000)
LARGE = content("large", 40 << 20)


def test_a_status_is_answered_with_an_error_of_s3(origin: FaultProxy) -> None:
    """The error has the rule's code and headers and comes as often as it says; the connection stays open."""
    origin.set_rules(
        FaultRule(Fault(status=503, headers={"Retry-After": "7"}), path="small", times=2),
        FaultRule(Fault(status=400, code="X&Y")),
    )
    with connected(origin.port) as connection:
        replies = [ask(connection, "/bkt/small") for _ in range(3)]
    assert [reply.status for reply in replies] == [503, 503, 400]
    assert b"<Code>SlowDown</Code>" in replies[0].body
    assert b"<Resource>/bkt/small</Resource>" in replies[0].body
    assert b"<Code>X&amp;Y</Code>" in replies[2].body
    assert [reply.headers["Retry-After"] for reply in replies] == ["7", "7", None]
    counts = origin.counts()
    assert (counts.requests, counts.fired, counts.n_connections) == ({("GET", 503): 2, ("GET", 400): 1}, (2, 1), 1)
    assert [entry.rule for entry in origin.log()] == [0, 0, 1]


def test_a_status_for_an_upload_takes_its_body_or_does_not_ask_for_it(origin: FaultProxy) -> None:
    """An upload that was begun is read first. A client that waits for 100 Continue gets the error at once."""
    origin.set_rules(FaultRule(Fault(status=500)))
    with connected(origin.port) as connection:
        assert [ask(connection, "/bkt/x", "PUT", bytes(3 << 20)).status for _ in range(2)] == [500, 500]
    with raw_connection(origin.port) as (connection_by_hand, answers):
        connection_by_hand.sendall(b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        head = read_head(answers)
        assert head.startswith("HTTP/1.1 500")
        assert "Connection: close" in head


def test_a_reset_comes_before_the_store_hears_or_after_it_is_done() -> None:
    """Either way, not a byte of an answer arrives."""
    heard: list[str] = []

    def talk(incoming: BinaryIO, outgoing: BinaryIO) -> None:
        while head := read_head(incoming):
            heard.append(head.split(" ")[1])
            outgoing.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with scripted_server(talk) as port, FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy:
        proxy.set_rules(FaultRule(Fault(reset="before"), path="before"), FaultRule(Fault(reset="after"), path="after"))
        for path in ("/before", "/after"):
            with pytest.raises(ConnectionResetError):
                ask_once(proxy.port, path)
        wait_until("both are over", lambda: all(entry.ended_s is not None for entry in proxy.log()))
        counts = proxy.counts()
    assert heard == ["/after"]
    assert (counts.requests, counts.n_bytes) == ({("GET", 0): 2}, 0)


@pytest.mark.parametrize(("spot", "n_bytes"), [(0, 0), (700, 700), (0.25, 10 << 20), (30_000_001, 30_000_001)])
def test_a_cut_lets_exactly_so_much_through(origin: FaultProxy, spot: float, n_bytes: int) -> None:
    """Every byte before it arrives. Then the connection closes in good order, and the client misses the rest."""
    origin.set_rules(FaultRule(Fault(cut_after=spot), times=1))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask_once(origin.port, "/bkt/large")
    assert caught.value.partial == LARGE[:n_bytes]
    assert origin.counts().bytes_by_path.get("/bkt/large", 0) == n_bytes
    assert ask_once(origin.port, "/bkt/large").body == LARGE


def test_a_cut_of_a_range_counts_from_its_own_begin_and_may_be_a_reset(origin: FaultProxy) -> None:
    """A cut at or beyond the end of the body has no effect."""
    origin.set_rules(FaultRule(Fault(cut_after=100, cut_by="reset"), ranged=True))
    assert ask_once(origin.port, "/bkt/small", Range="bytes=5-104").body == SMALL[5:105]
    with pytest.raises(ConnectionResetError):
        ask_once(origin.port, "/bkt/small", Range="bytes=5-105")
    assert ask_once(origin.port, "/bkt/small").body == SMALL


def test_a_flip_changes_one_bit(origin: FaultProxy) -> None:
    """At a byte or a fraction of the body; all other bytes arrive unchanged."""
    origin.set_rules(FaultRule(Fault(flip_at=999), path="small"), FaultRule(Fault(flip_at=0.5), path="large"))
    assert ask_once(origin.port, "/bkt/small").body == SMALL[:-1] + bytes([SMALL[-1] ^ 1])
    got, half = ask_once(origin.port, "/bkt/large").body, 20 << 20
    assert (got[:half], got[half], got[half + 1 :]) == (LARGE[:half], LARGE[half] ^ 1, LARGE[half + 1 :])


@pytest.mark.parametrize("where", [None, 500, 0.5])
def test_a_stall_holds_back_what_follows(origin: FaultProxy, where: float | None) -> None:
    """The head, or the rest of the body; everything before it arrives. After the stall, sending continues."""
    origin.set_rules(
        FaultRule(Fault(stall_s=0.4, stall_after=where), times=1), FaultRule(Fault(stall_s=1e6, stall_after=where))
    )
    began_s = time.monotonic()
    assert ask_once(origin.port, "/bkt/small").body == SMALL
    assert time.monotonic() - began_s >= 0.4
    with raw_connection(origin.port) as (connection, answers):
        connection.sendall(b"GET /bkt/small HTTP/1.1\r\nHost: h\r\n\r\n")
        if where is not None:
            read_head(answers)
            assert answers.read(500) == SMALL[:500]
        wait_until("the request has come", lambda: len(origin.log()) == 2)
        entry = origin.log()[1]
        assert (entry.status, entry.n_bytes, entry.ended_s) == ((0, 0, None) if where is None else (200, 500, None))


@pytest.mark.parametrize("where", [None, 500])
def test_new_rules_end_a_stall(origin: FaultProxy, where: int | None) -> None:
    """So a test can hold an answer back until it has done something, without depending on time."""
    origin.set_rules(FaultRule(Fault(stall_s=1e6, stall_after=where), skip=1))
    with connected(origin.port) as connection, ThreadPoolExecutor(1) as pool:
        assert ask(connection, "/bkt/small").body == SMALL
        reading = pool.submit(ask, connection, "/bkt/small")
        wait_until("the request has come", lambda: origin.counts().fired == (1,))
        origin.set_rules()
        assert reading.result(PATIENCE_S).body == SMALL


def test_who_leaves_during_a_stall_is_gone(origin: FaultProxy) -> None:
    """Its connection does not count as open any more, though the stall would have lasted for hours."""
    origin.set_rules(FaultRule(Fault(stall_s=1e6)))
    with raw_connection(origin.port) as (connection, _):
        connection.sendall(b"GET /bkt/small HTTP/1.1\r\nHost: h\r\n\r\n")
        wait_until("the request has come", lambda: origin.counts().fired == (1,))
        assert origin.counts().open_connections == 1
    wait_until("the connection has gone", lambda: origin.counts().open_connections == 0)
    assert origin.counts().requests == {("GET", 0): 1}


@pytest.mark.parametrize("how", ["chunked", "close"])
def test_without_a_length_the_body_still_comes_whole(origin: FaultProxy, how: Any) -> None:
    """It comes in chunks, or ends with the connection; for ranges too. HEAD states no length either."""
    origin.set_rules(FaultRule(Fault(no_length=how)))
    with connected(origin.port) as connection:
        whole, part = ask(connection, "/bkt/large"), ask(connection, "/bkt/large", Range="bytes=7-9")
        head = ask(connection, "/bkt/large", "HEAD")
    assert (whole.body, part.body, part.status) == (LARGE, LARGE[7:10], 206)
    assert {reply.headers["Content-Length"] for reply in (whole, part, head)} == {None}
    assert whole.headers["Transfer-Encoding"] == ("chunked" if how == "chunked" else None)
    assert origin.counts().n_connections == (1 if how == "chunked" else 3)


def test_a_cut_in_chunks_is_seen_and_one_at_the_close_is_not(origin: FaultProxy) -> None:
    """Without a length, a cut body that ends with the connection looks complete."""
    origin.set_rules(
        FaultRule(Fault(no_length="chunked", cut_after=300), path="small", times=1),
        FaultRule(Fault(no_length="close", cut_after=300), path="small", times=1),
    )
    with pytest.raises(http.client.IncompleteRead):
        ask_once(origin.port, "/bkt/small")
    assert ask_once(origin.port, "/bkt/small").body == SMALL[:300]


def test_ranges_and_etags_may_be_ignored_dropped_and_changed(origin: FaultProxy) -> None:
    """A rule can also replace other headers."""
    origin.set_rules(
        FaultRule(Fault(ignore_range=True), times=1),
        FaultRule(Fault(etag="drop"), times=1),
        FaultRule(Fault(etag="change"), times=1),
        FaultRule(Fault(headers={"content-range": "bytes 0-0/1"}), times=1),
    )
    with connected(origin.port) as connection:
        whole, dropped, changed, claimed, plain = (ask(connection, "/bkt/small", Range="bytes=10-19") for _ in range(5))
    assert (whole.status, whole.body, whole.headers["Content-Range"]) == (200, SMALL, None)
    assert {reply.body for reply in (dropped, changed, claimed, plain)} == {SMALL[10:20]}
    assert dropped.headers["ETag"] is None
    assert changed.headers["ETag"] not in (None, plain.headers["ETag"])
    assert changed.headers["ETag"].endswith('"')
    assert claimed.headers.get_all("Content-Range") == ["bytes 0-0/1"]
    assert plain.headers["ETag"] == whole.headers["ETag"] == claimed.headers["ETag"]
    assert origin.ranges() == [("/bkt/small", 10, 20)] * 5


def test_what_cannot_be_done_to_an_answer_is_said_in_its_place(origin: FaultProxy) -> None:
    """A fault at a fraction of a body of unknown length is answered by a 500 that says so."""

    def talk(incoming: BinaryIO, outgoing: BinaryIO) -> None:
        read_head(incoming)
        outgoing.write(b"HTTP/1.1 200 OK\r\n\r\nof some length")

    with scripted_server(talk) as port, FaultProxy.started(upstream=f"127.0.0.1:{port}") as proxy:
        proxy.set_rules(FaultRule(Fault(cut_after=0.5), times=1), FaultRule(Fault(cut_after=4)))
        reply = ask_once(proxy.port, "/x")
        assert (reply.status, b"length is not known" in reply.body) == (500, True)
        with pytest.raises(http.client.IncompleteRead) as caught:
            ask_once(proxy.port, "/x")
        assert caught.value.partial == b"of s"


def test_obstore_sees_each_fault(origin: FaultProxy) -> None:
    """As an error of its kind, or, for a flipped bit, as wrong bytes without an error."""
    faults = {
        "busy": Fault(status=503),
        "forbidden": Fault(status=403),
        "reset-before": Fault(reset="before"),
        "reset-after": Fault(reset="after"),
        "cut": Fault(cut_after=0.5),
        "stalled": Fault(stall_s=1e6, stall_after=0.5),
        "silent": Fault(stall_s=1e6),
        "flipped": Fault(flip_at=0),
        "chunked": Fault(no_length="chunked"),
        "no-etag": Fault(etag="drop"),
        "plain": Fault(),
    }
    origin.add_bytes("bkt", contents(dict.fromkeys(faults, 500_000)))
    origin.set_rules(*(FaultRule(fault, path=f"/{key}$") for key, fault in faults.items()))
    found = run_obstore(
        f"found = {{key: said(lambda: bytes(obstore.get(store, key).bytes())[:4].hex()) for key in {list(faults)}}}",
        "bkt",
        origin.variables(),
        read_timeout_s=1.0,
    )
    first = {key: content(key, 4) for key in faults}
    assert found["plain"] == first["plain"].hex()
    assert found["flipped"] == bytes([first["flipped"][0] ^ 1, *first["flipped"][1:]]).hex()
    assert "503" in found["busy"]
    assert found["forbidden"].startswith("PermissionDeniedError")
    assert "Content-Length" in found["chunked"] or "content length" in found["chunked"].lower(), found["chunked"]
    for key in ("reset-before", "reset-after", "cut", "stalled", "silent"):
        assert "rror" in found[key].split(":")[0], (key, found[key])
    counts = origin.counts()
    assert counts.fired == (1,) * len(faults)
    assert counts.bytes_by_path["/bkt/cut"] == counts.bytes_by_path["/bkt/stalled"] == 250_000


def test_obstore_mends_what_comes_once_per_key(origin: FaultProxy) -> None:
    """With obstore's own retries every object arrives, and each has met its fault."""
    origin.add_bytes("bkt", contents({f"key{number}": 100_000 for number in range(6)}))
    kinds = [Fault(status=500), Fault(reset="before"), Fault(cut_after=0.5)]
    rules = [FaultRule(fault, path=f"key[{n}{n + 3}]", once_per_path=True) for n, fault in enumerate(kinds)]
    origin.set_rules(*rules)
    found = run_obstore(
        """
keys = [f"key{number}" for number in range(6)]
found = [hashlib.sha256(obstore.get(store, key).bytes()).hexdigest() for key in keys]
""",
        "bkt",
        origin.variables(),
        n_retries=3,
    )
    assert len(set(found)) == 6
    assert origin.counts().fired == (2, 2, 2)
    assert origin.counts().requests_by_path == {f"/bkt/key{number}": 2 for number in range(6)}


def test_faults_reach_clients_of_a_store_that_checks_signatures(before_s3: FaultProxy, s3_server: S3Server) -> None:
    """A signed Range cannot be removed on the way, and the answer says so."""
    s3_server.put("faults/a", SMALL)
    before_s3.set_rules(
        FaultRule(Fault(ignore_range=True), times=1),
        FaultRule(Fault(flip_at=3), times=1),
        FaultRule(Fault(status=503, headers={"Retry-After": "1"}), times=1),
        FaultRule(Fault(etag="change"), times=1),
    )
    found = run_obstore(
        """
found = [said(lambda: bytes(obstore.get_range(store, "faults/a", start=0, end=10)).hex())]
found.append(said(lambda: bytes(obstore.get_range(store, "faults/a", start=0, end=10)).hex()))
found.append(said(lambda: obstore.head(store, "faults/a")["size"]))
etag = obstore.head(store, "faults/a")["e_tag"]
found.append(said(lambda: obstore.get(store, "faults/a", options={"if_match": etag})))
found.append(said(lambda: obstore.head(store, "faults/a")["size"]))
""",
        s3_server.bucket,
        {**s3_server.variables(), **before_s3.variables()},
    )
    assert "the client signs its Range" in found[0]
    assert found[1] == (SMALL[:3] + bytes([SMALL[3] ^ 1]) + SMALL[4:10]).hex()
    assert "503" in found[2]
    assert found[3].startswith("PreconditionError")
    assert found[4] == 1000
