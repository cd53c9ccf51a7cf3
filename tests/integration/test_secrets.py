"""No secret is ever shown: in errors, in the fetcher's log, in `repr`, in what is pickled of an error."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import OptionError, StorageError, StoreMovedError, StreamingError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest
from streaming.storage.common.transport import check_endpoint
from streaming.storage.open_stores import Stores
from streaming.storage.options import checked_options
from streaming.storage.url import parse_remote
from support.answers import AnswerServer, Question, Reply
from support.fetching import stream_config

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

SECRET = "S3CR3T/w0rd+of+many=signs=="
WORD = "S3CR3T"


@dataclass(frozen=True)
class Way:
    """One way to give a secret to a store; `{host}` and `{url}` stand for the server's."""

    remote: str
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


WAYS = {
    "s3 options": Way("s3://bucket/d", {"endpoint": "{url}", "access_key_id": "me", "secret_access_key": SECRET}),
    "s3 session": Way(
        "s3://bucket/d",
        {"endpoint": "{url}", "access_key_id": "me", "secret_access_key": SECRET, "session_token": SECRET},
    ),
    "s3 variables": Way(
        "s3://bucket/d", {"endpoint": "{url}"}, {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET}
    ),
    "gs token": Way("gs://bucket/d", {"endpoint": "{url}", "token": SECRET}),
    "gs hmac": Way("gs://bucket/d", {"endpoint": "{url}", "access_key_id": "me", "secret_access_key": SECRET}),
    "azure sas": Way(
        "azure://bucket/d", {"endpoint": "{url}", "account_name": "a", "sas_token": f"sv=1&sig={WORD}signature"}
    ),
    "azure token": Way("azure://bucket/d", {"endpoint": "{url}", "account_name": "a", "token": SECRET}),
    "azure connection string": Way(
        "azure://bucket/d",
        {},
        {"AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={{url}};AccountName=a;SharedAccessSignature=sig={WORD}sign"},
    ),
    "web user": Way(f"http://me:{WORD}word@{{host}}/d"),
    "web options": Way("http://{host}/d", {"user": "me", "password": SECRET}),
    "web token": Way("http://{host}/d", {"token": SECRET}),
    "web query": Way("http://{host}/d", {"query": f"sv=1&sig={WORD}signature"}),
    "web headers": Way("http://{host}/d", {"headers": {"X-Key": SECRET}}),
    "hub": Way("hf://datasets/org/name/d", {"endpoint": "{url}", "token": SECRET}),
    "hub variable": Way("hf://datasets/org/name/d", {"endpoint": "{url}"}, {"HF_TOKEN": SECRET}),
    "databricks": Way("dbfs:/Volumes/a/b/c/d", {"endpoint": "{url}", "token": SECRET}),
    "oss": Way(
        "oss://bucket/d",
        {"endpoint": "{url}", "access_key_id": "me", "secret_access_key": SECRET, "virtual_hosted_style": False},
    ),
    "r2": Way("r2://bucket/d", {"endpoint": "{url}", "access_key_id": "me", "secret_access_key": SECRET}),
    "proxy": Way("http://store.example/d", {"proxy": f"http://me:{WORD}word@{{host}}"}),
}


def _echo(question: Question) -> Reply:
    """What a badly written server does: it repeats what it was sent, in the form of S3's errors, credentials first."""
    said = (
        " ".join([question.headers.get("authorization", ""), question.target, *question.headers.values()])
        .replace("<", "")
        .replace("&", "&amp;")
    )
    return Reply(403, {}, f"<Error><Code>Denied</Code><Message>{said}</Message></Error>".encode())


def _redirect(question: Question) -> Reply:
    target = question.target.partition("?")[2]
    return Reply(302, {"Location": f"ftp://me:{WORD}word@elsewhere/x?{target}&X-Amz-Signature={WORD}"})


REPLIES: dict[str, Callable[[Question], Reply]] = {
    "echo": _echo,
    "missing": lambda question: Reply(404),
    "broken": lambda question: Reply(500, {}, _echo(question).body),
    "redirect": _redirect,
    "no store": lambda question: Reply(200, {"Content-Length-": "x"}, b"<html>log in</html>"),
}


@pytest.fixture
def answers() -> Iterator[AnswerServer]:
    with AnswerServer.started() as server:
        yield server


def is_clean(text: str) -> bool:
    """Whether the text holds no part of a secret."""
    return WORD not in text and "UzNDUjNU" not in text


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", WAYS)
def test_no_secret_is_shown(
    tmp_path: Path, answers: AnswerServer, name: str, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server answers, also if it repeats the secret: not in the error, its pickle, or the log."""
    way, host = WAYS[name], answers.url.partition("://")[2]
    answers.reply = REPLIES[reply]

    def fill(text: str) -> str:
        return text.replace("{url}", answers.url).replace("{host}", host)

    variables = {"HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    variables |= {variable: fill(value) for variable, value in way.variables.items()}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    options = {key: fill(value) if isinstance(value, str) else value for key, value in way.options.items()}
    config = stream_config(fill(way.remote), str(tmp_path / "cache"), options=json.dumps(options), download_retry=1)
    with FetchClient(str(tmp_path / "cache"), [config]) as client:
        with pytest.raises(StreamingError) as refused:
            client.wait(FileRequest(0, "index.json", 1000))
        assert is_clean(str(refused.value)), refused.value
        assert is_clean(repr(refused.value))
        assert is_clean(repr(pickle.dumps(refused.value)))
        log = next((tmp_path / "cache" / ".streaming").rglob("*.log")).read_text()
        assert is_clean(log), log
    assert is_clean(repr(config.remote))
    assert is_clean(repr(Stores(variables).open(config.remote, 1.0, options)))


@pytest.mark.parametrize(
    "endpoint",
    [
        f"ftp://user:{WORD}@host",
        f"http://user:{WORD}@host",
        f"https://{WORD}@host:1/x",
        f"https://host/?sig={WORD}",
        f"https://host#{WORD}",
        f"user:{WORD}@host",
        f"http://user:{WORD}@[bad",
        f"http://user:{WORD}@host:port",
        f"http://user:{WORD}@",
        f"http:/user:{WORD}@host",
        f"http://user:{WORD}/x@host:port",
    ],
)
def test_an_endpoint_with_a_user_is_refused_and_not_shown(endpoint: str) -> None:
    """It would not be sent; the error says where it stood."""
    with pytest.raises(OptionError, match="`endpoint` in storage_options") as refused:
        check_endpoint(endpoint, named="`endpoint` in storage_options")
    assert is_clean(str(refused.value)), refused.value
    with pytest.raises(OptionError) as refused:
        Stores({"HOME": "/nowhere"}).open(parse_remote("s3://bucket/x"), 1.0, {"endpoint": endpoint})
    assert is_clean(str(refused.value))


@pytest.mark.parametrize(
    "options", [{"password": 1}, {"sas_token": [SECRET]}, {"tokn": SECRET}, {"token": {SECRET: 1}}]
)
def test_wrong_options_are_not_shown(options: dict[str, Any]) -> None:
    """The error names the option alone."""
    for remote in ("s3://bucket/x", "https://host/x", "azure://bucket/x"):
        with pytest.raises(OptionError) as refused:
            checked_options(parse_remote(remote), options)
        assert is_clean(str(refused.value))


@pytest.mark.parametrize(
    "location",
    ["http://[bad", "http://host:port/", "//[::1", "ftp://me:S3CR3T@host/", "http://me:S3CR3T@host:99999/", "mailto:x"],
)
@pytest.mark.parametrize("remote", ["http://{host}/d", "hf://datasets/org/name/d"])
def test_a_bad_redirect_is_an_error_of_ours(answers: AnswerServer, location: str, remote: str) -> None:
    """No ValueError of the standard library, and no secret."""
    answers.reply = lambda question: Reply(302, {"Location": location})
    options = {} if "http" in remote else {"endpoint": answers.url}
    place = parse_remote(remote.format(host=answers.url.partition("://")[2]))
    store = Stores({"HOME": "/nowhere", "NO_PROXY": "127.0.0.1"}).open(place, 5.0, options)
    asks: list[Callable[[], object]] = [
        lambda: store.get("x"),
        lambda: store.head("x"),
        lambda: store.get_range("x", 0, 1),
    ]
    for ask in asks:
        with pytest.raises(StorageError) as refused:
            ask()
        assert is_clean(str(refused.value))
        assert type(refused.value) in (StoreMovedError, StorageError)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length-": "1"},
        {"ETag": "\xb2", "Last-Modified": "Mon, 01 Jan 0001 00:00:00 -0000"},
        {"Retry-After": "Mon, 01 Jan 0001 00:00:00 -0000"},
        {"Retry-After": "\xb2"},
        {"Content-Range": "bytes \xb2-3/4"},
        {"RateLimit": ";t=\xb2"},
    ],
)
@pytest.mark.parametrize("status", [200, 206, 503, 429])
def test_strange_headers_give_no_foreign_error(answers: AnswerServer, status: int, headers: dict[str, str]) -> None:
    """A store that answers nonsense is refused, or what it means is taken."""
    answers.reply = lambda question: Reply(status, headers, b"abc")
    place = parse_remote(f"{answers.url}/d")
    store = Stores({"HOME": "/nowhere", "NO_PROXY": "127.0.0.1"}).open(place, 5.0)
    asks: list[Callable[[], object]] = [
        lambda: b"".join(store.get("x").chunks),
        lambda: store.head("x"),
        lambda: store.get_range("x", 0, 2),
    ]
    for ask in asks:
        try:
            ask()
        except StorageError:
            continue
