"""What people and other tools write: keys with line breaks, endpoints of other tools, connection strings, odd names."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.errors import OptionError, StorageError
from streaming.storage.buckets.azure_settings import AzureIdentity, azure_settings
from streaming.storage.open_stores import Stores
from streaming.storage.options import read_options
from streaming.storage.store import Store
from streaming.storage.url import Bucket, parse_remote
from support.answers import AnswerServer, Reply

ABOUT = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "here"}
WORD = "S3CR3T"


@pytest.fixture
def answers() -> Iterator[AnswerServer]:
    with AnswerServer.started() as server:
        server.reply = lambda _: Reply(200, ABOUT, b"abc")
        yield server


def opened(answers: AnswerServer, remote: str, options: dict[str, Any], variables: dict[str, str]) -> Store:
    """Open a store; `{url}` stands for the server's URL, `{host}` for its host and port."""
    host = answers.url.partition("://")[2]
    filled = {name: value.format(url=answers.url) for name, value in variables.items()}
    if "endpoint" in options:
        options = {**options, "endpoint": answers.url}
    environment = {"HOME": "/nowhere", "NO_PROXY": "127.0.0.1", **filled}
    return Stores(environment).open(parse_remote(remote.format(host=host)), 20.0, options)


AT_URL = {"endpoint": "here"}


@pytest.mark.parametrize("end", ["\n", "\r\n", " ", "\t\n"])
@pytest.mark.parametrize(
    ("remote", "options", "variables"),
    [
        ("s3://b/d", AT_URL, KEYS),
        ("s3://b/d", AT_URL, {**KEYS, "AWS_SESSION_TOKEN": "token"}),
        ("s3://b/d", {**AT_URL, "access_key_id": "key", "secret_access_key": "secret", "region": "here"}, {}),
        ("gs://b/d", {**AT_URL, "token": "token"}, {}),
        ("gs://b/d", AT_URL, {"GOOGLE_BEARER_TOKEN": "token"}),
        ("azure://b/d", {**AT_URL, "account_name": "a", "account_key": "QUFB"}, {}),
        ("azure://b/d", AT_URL, {"AZURE_ACCOUNT_NAME": "a", "AZURE_ACCOUNT_ACCESS_KEY": "QUFB"}),
        ("http://{host}/d", {"token": "token"}, {}),
        ("http://{host}/d", {"headers": {"Authorization": "token"}}, {}),
        ("http://{host}/d", {"query": "sig=token"}, {}),
    ],
)
def test_a_line_break_after_a_secret_does_not_count(
    answers: AnswerServer, remote: str, options: dict[str, Any], variables: dict[str, str], end: str
) -> None:
    """Files and secret managers leave one; what is sent is the same as without it."""

    def sent(tail: str) -> tuple[str, str]:
        secret = {name: value if name in ("endpoint", "region", "account_name") else _with(value, tail)
                  for name, value in options.items()}  # fmt: skip
        named = {name: value + tail for name, value in variables.items()}
        assert b"".join(opened(answers, remote, secret, named).get("x").chunks) == b"abc"
        asked = answers.asked[-1]
        return asked.target, asked.headers.get("authorization", "").partition("Signature=")[0].partition(":")[0]

    assert sent(end) == sent("")


def _with(value: Any, tail: str) -> Any:
    return {name: text + tail for name, text in value.items()} if isinstance(value, dict) else value + tail


@pytest.mark.parametrize("value", [f"{WORD}\nmore", f"{WORD}\0", f"{WORD}€"])
def test_what_no_request_can_hold_is_refused_and_not_shown(value: str) -> None:
    """At construction, by the name of the option."""
    for options in ({"token": value}, {"headers": {"X": value}}, {"query": value}):
        with pytest.raises(OptionError, match=next(iter(options))) as refused:
            read_options(options, frozenset(options), scheme="https")
        assert WORD not in str(refused.value)


@pytest.mark.parametrize(
    ("remote", "variables"),
    [
        ("s3://b/d", {**KEYS, "AWS_ACCESS_KEY_ID": f"k\1{WORD}"}),
        ("s3://b/d", {**KEYS, "AWS_SESSION_TOKEN": f"{WORD}\1x"}),
        ("gs://b/d", {"GOOGLE_BEARER_TOKEN": f"{WORD}\nx"}),
        ("hf://datasets/a/b/d", {"HF_TOKEN": f"{WORD}\nx"}),
        ("dbfs:/Volumes/a/b/c/d", {"DATABRICKS_TOKEN": f"{WORD}\nx"}),
    ],
)
def test_a_client_that_cannot_send_is_an_error_of_ours(
    answers: AnswerServer, remote: str, variables: dict[str, str]
) -> None:
    """Also one that panics, which is no `Exception`; and the secret is not shown."""
    store = opened(answers, remote, AT_URL, variables)
    with pytest.raises(StorageError) as refused:
        store.get("x")
    assert WORD not in str(refused.value)
    assert answers.asked == []


@pytest.mark.parametrize("variable", ["S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_endpoint_of_any_tool_counts(answers: AnswerServer, variable: str) -> None:
    """Of s5cmd and the predecessor, of AWS, of obstore, DuckDB and Delta Lake."""
    assert b"".join(opened(answers, "s3://b/d", {}, {**KEYS, variable: "{url}"}).get("x").chunks) == b"abc"


@pytest.mark.parametrize(
    ("text", "account", "endpoint"),
    [
        ("UseDevelopmentStorage=true", "devstoreaccount1", "http://127.0.0.1:10000/devstoreaccount1"),
        ("AccountName=a;AccountKey=QUFB", "a", "https://a.blob.core.windows.net"),
        (
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=QUFB==;EndpointSuffix=core.chinacloudapi.cn",
            "a",
            "https://a.blob.core.chinacloudapi.cn",
        ),
        ("AccountName=a;AccountKey=QUFB;BlobEndpoint=http://host:1/a;EndpointSuffix=x", "a", "http://host:1/a"),
    ],
)
def test_a_connection_string_counts_as_for_azures_tools(text: str, account: str, endpoint: str) -> None:
    """With its protocol, its cloud, and the emulator."""
    found = azure_settings(Bucket("azure", "c", "d"), {"AZURE_STORAGE_CONNECTION_STRING": text})
    assert (found.account, found.endpoint) == (account, endpoint)
    assert found.identity is AzureIdentity.ENVIRONMENT_KEY


@pytest.mark.parametrize("name", ["a b ", "~a", "a:b*", "ü/日本", "a%20b", "a?b#c", "a&b=c+d", "'a';", "a\\b"])
@pytest.mark.parametrize("remote", ["s3://b/d", "gs://b/d", "azure://b/d", "http://{host}/d"])
def test_an_odd_name_is_asked_for_as_it_is(answers: AnswerServer, remote: str, name: str) -> None:
    """One request, whose path is that name when it is decoded."""
    options: dict[str, Any] = {
        "s3": {**AT_URL, "access_key_id": "k", "secret_access_key": "s", "region": "here"},
        "gs": {**AT_URL, "token": "t"},
        "azure": {**AT_URL, "account_name": "a", "account_key": "QUFB"},
    }.get(remote.partition(":")[0], {})
    assert b"".join(opened(answers, remote, options, {}).get(name).chunks) == b"abc"
    assert [urllib.parse.unquote(each.target).endswith(f"/d/{name}") for each in answers.asked] == [True]


@pytest.mark.parametrize("name", ["a//b", "./a", "a/../b", "a\nb"])
def test_a_name_that_the_client_would_change_is_refused(answers: AnswerServer, name: str) -> None:
    """Rather than another object being read."""
    store = opened(answers, "s3://b/d", AT_URL, KEYS)
    with pytest.raises(StorageError, match="no such name"):
        store.get(name)
    assert answers.asked == []
