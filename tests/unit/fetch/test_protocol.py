"""What goes over the socket comes out as it went in."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from streaming import errors
from streaming.errors import FetchError, IndexFormatError, MissingExtraError, StreamingError
from streaming.fetch.wire.protocol import (
    PROTOCOL,
    Announce,
    Answer,
    AskStatus,
    Check,
    Done,
    Failed,
    FileRequest,
    Hello,
    ListObjects,
    Pending,
    Put,
    RangeAsk,
    ReadObject,
    ReadRanges,
    Reason,
    Request,
    Span,
    Wait,
    receive_answer,
    receive_request,
    send_answer,
    send_frame,
    send_request,
)
from streaming.storage.url import parse_remote
from support.fetching import stream_config

NEED = FileRequest(1, "sub/shard.mds", 10, "sub/shard.mds.zstd", 5, "zstd:3", "xxh3_64", "ab")
ODD = FileRequest(0, "a b/ü\udc80.mds", -1)
CONFIG = stream_config("s3://b/x", "/cache", 3, 7.5, True)
REQUESTS: list[Request] = [
    Hello(PROTOCOL, "1.0", "job", (CONFIG, stream_config("/a", "/b"))),
    Hello(PROTOCOL, "1.0", "job", ()),
    Announce("rank0", (NEED, ODD)),
    Announce("rank0", ()),
    Wait(NEED),
    ReadRanges("t", RangeAsk(Reason.AHEAD, 1.5, 3, 0, 5, 9, 4, 1, 2e6), (Span(NEED, 0, 10, keep=True),), False),
    Put("t", parse_remote("s3://b"), "/path", "name", 2),
    Check("t", parse_remote("s3://b/x")),
    ReadObject("t", parse_remote("/folder"), "name", 2, 1.5),
    ListObjects("t", parse_remote("s3://b"), ""),
    AskStatus(),
]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        one.settimeout(5)
        two.settimeout(5)
        yield one, two


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_arrives_as_it_was_sent(pair: tuple[socket.socket, socket.socket], request_: Request) -> None:
    """Every kind, with odd names too."""
    send_request(pair[0], request_)
    assert receive_request(pair[1]) == request_


@pytest.mark.parametrize("answer", [Done(), Done({"a": [1, 2]}), Done(payload=bytes(100_000)), Pending("x")])
def test_an_answer_arrives_as_it_was_sent(pair: tuple[socket.socket, socket.socket], answer: Answer) -> None:
    """With its bytes."""
    send_answer(pair[0], answer)
    assert receive_answer(pair[1]) == answer


KINDS = sorted(
    (k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, StreamingError)),
    key=lambda k: k.__name__,
)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_raised_as_the_kind_it_was(
    pair: tuple[socket.socket, socket.socket], kind: type[StreamingError]
) -> None:
    """Same class, same words; also where the class is made in another way."""
    error = (
        kind("what happened")
        if kind is not MissingExtraError
        else MissingExtraError(package="p", extra="e", purpose="q")
    )
    send_answer(pair[0], Failed(error))
    answer = receive_answer(pair[1])
    assert isinstance(answer, Failed)
    assert type(answer.error) is kind
    assert str(answer.error) == str(error)


def test_an_error_of_no_kind_of_ours_is_still_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    """Nothing is looked up that is no error."""
    send_frame(pair[0], ["failed", "annotations", "words"])
    answer = receive_answer(pair[1])
    assert isinstance(answer, Failed)
    assert type(answer.error) is FetchError


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a\\b", "a\0b"])
def test_a_name_that_leads_elsewhere_is_no_need(name: str) -> None:
    """Refused on both sides, as raw and as compressed name."""
    with pytest.raises(IndexFormatError):
        FileRequest(0, name, 1)
    with pytest.raises(IndexFormatError):
        FileRequest(0, "a", 1, zip_name=name)


@pytest.mark.parametrize("head", [[], ["nonsense"], ["Wait"], ["Wait", [1]], ["Announce", "r", 5], ["send_frame", 1]])
def test_what_is_no_request_is_an_error_in_words(pair: tuple[socket.socket, socket.socket], head: object) -> None:
    """It says what came."""
    send_frame(pair[0], head)
    with pytest.raises(FetchError, match="does not understand"):
        receive_request(pair[1])


@pytest.mark.parametrize("sent", [b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{]"])
def test_what_is_no_frame_ends_the_connection(pair: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    """As if the peer had gone."""
    pair[0].sendall(sent)
    with pytest.raises(ConnectionError):
        receive_request(pair[1])


def test_a_hello_of_another_protocol_is_understood_far_enough(pair: tuple[socket.socket, socket.socket]) -> None:
    """So that the answer can name both."""
    send_frame(pair[0], ["Hello", PROTOCOL + 1, "9.9", "job", [["something", "new"]], "more"])
    assert receive_request(pair[1]) == Hello(PROTOCOL + 1, "9.9", "job", ())
