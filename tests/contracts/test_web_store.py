"""No behaviour of a web server makes wrong data. nginx has most behaviours; the others are scripted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    StoreBusyError,
    StoreCannotError,
    StoreMovedError,
    TransferDamagedError,
)
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.web import WebServer
from support.answers import AnswerServer, Question, Reply
from support.servers import started

WHOLE = os.urandom(3 << 20)
READING = ["plain", "ignores-ranges", "no-length", "weak-versions", "no-etag", "no-head", "moved", "moved-for-good"]


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    for server in started(WebServer.started()):
        server.put("some folder/a", WHOLE)
        server.put("some folder/empty", b"")
        yield server


@pytest.fixture
def answers() -> Iterator[AnswerServer]:
    with AnswerServer.started() as server:
        yield server


def opened(url: str) -> Store:
    return Stores({"HOME": "/nowhere", "NO_PROXY": "127.0.0.1"}).open(parse_remote(url), 20.0)


@pytest.mark.parametrize("habit", READING)
def test_every_behaviour_gives_the_same_data(server: WebServer, habit: str) -> None:
    """Whole objects, reads from an offset and ranges agree; the size is right whether the server states it or not."""
    store = opened(server.url("some%20folder", habit=habit))
    content = store.get("a")
    assert (content.facts.n_bytes, b"".join(content.chunks)) == (len(WHOLE), WHOLE)
    rest = store.get("a", offset=1_000_001, version=content.facts.version)
    assert (rest.offset, rest.facts.n_bytes, b"".join(rest.chunks)) == (1_000_001, len(WHOLE), WHOLE[1_000_001:])
    for begin, end in ((0, 1), (2_000_000, 2_000_100), (len(WHOLE) - 5, len(WHOLE))):
        part = store.get_range("a", begin, end, version=content.facts.version)
        assert (part.data, part.facts.n_bytes) == (WHOLE[begin:end], len(WHOLE))
    assert store.head("a").n_bytes == len(WHOLE)
    assert (store.head("empty").n_bytes, b"".join(store.get("empty").chunks)) == (0, b"")


@pytest.mark.parametrize("habit", READING)
def test_every_behaviour_ends_at_the_end(server: WebServer, habit: str) -> None:
    """Bytes beyond the end are an error, and so is a missing object."""
    store = opened(server.url("some folder", habit=habit))
    with pytest.raises(TransferDamagedError):
        store.get_range("a", len(WHOLE) - 5, len(WHOLE) + 1)
    with pytest.raises(ObjectMissingError):
        store.get("nothing")
    with pytest.raises(ObjectMissingError):
        store.head("nothing")


def test_what_a_server_disallows_is_an_error(server: WebServer, tmp_path: Path) -> None:
    """Reading, frequent requests, uploads and listing may be disallowed."""
    (tmp_path / "file").write_bytes(bytes(5 << 20))
    with pytest.raises(ObjectForbiddenError, match="no credentials"):
        opened(server.url("some folder", habit="forbidden")).get("a")
    with pytest.raises(StoreBusyError) as caught:
        opened(server.url("some folder", habit="slow-down")).get("a")
    assert (caught.value.is_throttled, caught.value.retry_after_s) == (True, 7.0)
    with pytest.raises(StoreCannotError, match="405"):
        opened(server.url("some folder", habit="ignores-ranges")).put("b", str(tmp_path / "file"))
    with pytest.raises(StoreMovedError, match="/plain/some%20folder/b"):
        opened(server.url("some folder", habit="moved")).put("b", str(tmp_path / "file"))
    with pytest.raises(StoreCannotError, match="does not list"):
        opened(server.url("some folder")).list()


def test_connections_are_kept(answers: AnswerServer) -> None:
    """A hundred small requests need one connection; a refusal does not end it."""
    answers.reply = lambda _: Reply(206, {"ETag": '"1"', "Content-Range": "bytes 2-4/10"}, b"234")
    store = opened(answers.url)
    for _ in range(100):
        assert store.get_range("a", 2, 5).data == b"234"
    answers.reply = lambda _: Reply(404, {}, b"no" * 100)
    for _ in range(10):
        with pytest.raises(ObjectMissingError):
            store.get("a")
    assert answers.n_connections == 1


def test_a_cut_chunked_body_is_detected(answers: AnswerServer) -> None:
    """A chunked body has an end mark; without it the body is damaged, not short."""
    chunked = b"5\r\nabcde\r\n"
    for ending, is_whole in ((b"0\r\n\r\n", True), (b"", False)):
        headers = {"Transfer-Encoding": "chunked"}
        answers.reply = lambda _, body=chunked + ending: Reply(200, headers, body, states_length=False)  # type: ignore[misc]  # noqa: B023
        if is_whole:
            assert b"".join(opened(answers.url).get("a").chunks) == b"abcde"
        else:
            with pytest.raises(TransferDamagedError, match="broke"):
                opened(answers.url).get("a")


def test_a_version_is_requested_in_the_servers_terms(answers: AnswerServer) -> None:
    """An ETag or a date is sent; a weak ETag, which cannot be, is compared."""
    for headers, condition in (
        ({"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, ("if-match", '"1"')),
        ({"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, ("if-unmodified-since", "Wed, 21 Oct 2015 07:28:00 GMT")),
        ({"ETag": 'W/"1"'}, None),
    ):
        answers.reply = lambda _, headers=headers: Reply(200, headers, b"abc")  # type: ignore[misc]
        store = opened(answers.url)
        version = store.head("a").version
        store.get("a", version=version)
        asked = {name: value for name, value in answers.asked[-1].headers.items() if name.startswith("if-")}
        assert asked == (dict([condition]) if condition else {})
        answers.reply = lambda _: Reply(200, {"ETag": '"2"'}, b"abc")
        with pytest.raises(TransferDamagedError, match="changed"):
            store.get("a", version=version)


def test_redirects_come_to_an_end(answers: AnswerServer) -> None:
    """A circle of redirects is an error."""
    answers.reply = lambda _: Reply(302, {"Location": "/again"})
    with pytest.raises(StoreMovedError, match="sent us on"):
        opened(answers.url).get("a")
    assert len(answers.asked) == 6


def test_no_redirect_leads_from_https_to_http(answers: AnswerServer) -> None:
    """The error names the target, without its query, which may be secret."""
    location = f"return 302 {answers.url}/x?sig=HIDDEN;"
    for server in started(WebServer.started(is_encrypted=True, more=f"location /away/ {{ {location} }}")):
        options = {"ca_bundle": server.certificate}
        store = Stores({"NO_PROXY": "127.0.0.1"}).open(parse_remote(server.url(habit="away")), 20.0, options)
        with pytest.raises(StoreMovedError, match="nothing is encrypted") as caught:
            store.get("a")
        assert answers.url in str(caught.value)
        assert "HIDDEN" not in str(caught.value)
        assert answers.asked == []


def test_a_range_survives_redirects(answers: AnswerServer) -> None:
    """The range is sent to the target of a redirect as well."""

    def reply(question: Question) -> Reply:
        if question.target == "/data/a":
            return Reply(307, {"Location": "/elsewhere?b=c%20d"})
        assert question.headers["range"] == "bytes=2-4"
        return Reply(206, {"Content-Range": "bytes 2-4/10"}, b"234")

    answers.reply = reply
    assert opened(f"{answers.url}/data").get_range("a", 2, 5).data == b"234"
    assert answers.asked[-1].target == "/elsewhere?b=c%20d"
