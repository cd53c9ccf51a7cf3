"""Each fault of a store has its kind of error, which names object, endpoint and credentials, and what to check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import (
    CredentialsExpiredError,
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreBusyError,
    StoreMovedError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.azure import AzureServer
from streaming.testing.gcs import GcsServer
from streaming.testing.s3 import S3Server
from support.answers import AnswerServer, Reply
from support.servers import started

SECRET = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
REMOTES: dict[str, dict[str, str]] = {  # a URL of each kind of store → the options that name an endpoint
    "s3://bucket/prefix": {"access_key_id": "me", "secret_access_key": SECRET, "region": "here"},
    "gs://bucket/prefix": {"token": SECRET},
    "azure://bucket/prefix": {"account_name": "acc", "account_key": SECRET},
    "http://{host}/prefix": {"token": SECRET},
}
KINDS: dict[str, tuple[Reply, type[StorageError]]] = {
    "missing": (Reply(404), ObjectMissingError),
    "forbidden": (Reply(403), ObjectForbiddenError),
    "moved": (Reply(301), StoreMovedError),
    "expired": (Reply(403, body=b"<Error><Code>ExpiredToken</Code></Error>"), CredentialsExpiredError),
    "throttled": (Reply(429), StoreBusyError),
    "slow down": (Reply(503, body=b"<Error><Code>SlowDown</Code></Error>"), StoreBusyError),
    "broken": (Reply(500), StoreBusyError),
    "changed": (Reply(412), TransferDamagedError),
    "beyond": (Reply(416), TransferDamagedError),
    "strange": (Reply(418), StorageError),
}


@pytest.fixture
def answers() -> Iterator[AnswerServer]:
    with AnswerServer.started() as server:
        yield server


def opened(
    remote: str, endpoint: str, options: Mapping[str, Any], timeout_s: float = 20.0, environment: Any = None
) -> Store:
    """Open the store at this endpoint."""
    host = endpoint.partition("://")[2]
    if "{host}" not in remote:
        options = {"endpoint": endpoint, **options}
    stores = Stores({"HOME": "/nowhere", "NO_PROXY": "127.0.0.1", **(environment or {})})
    return stores.open(parse_remote(remote.format(host=host)), timeout_s, options)


def errors_of(store: Store) -> list[StorageError]:
    """Return the errors of `get`, `get_range` and `head`."""
    errors = []
    asks = (lambda: store.get("some key"), lambda: store.get_range("some key", 0, 2), lambda: store.head("some key"))
    for ask in asks:
        with pytest.raises(StorageError) as caught:
            ask()
        errors.append(caught.value)
    return errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("remote", REMOTES)
def test_each_refusal_is_an_error_of_its_kind(answers: AnswerServer, remote: str, kind: str) -> None:
    """An answer means the same from every store; a request to slow down differs from a failure."""
    reply, expected = KINDS[kind]
    answers.reply = lambda _: reply
    *errors, of_head = errors_of(opened(remote, answers.url, REMOTES[remote]))
    for error in errors:
        assert type(error) is expected
        if isinstance(error, StoreBusyError):
            assert error.is_throttled is (kind != "broken")
        for words in (f"{remote.format(host=f'127.0.0.1:{answers.port}')}/some key", answers.url, "storage_options"):
            assert words in str(error)
        assert SECRET not in str(error)
    assert reply.body or type(of_head) is expected  # an answer to HEAD has no body with a reason


@pytest.mark.parametrize("remote", REMOTES)
def test_an_absent_server_is_unreachable(remote: str) -> None:
    """The error of a refused connection has the endpoint, and says what to check."""
    for error in errors_of(opened(remote, "http://127.0.0.1:9", REMOTES[remote])):
        assert type(error) is StoreUnreachableError
        assert "127.0.0.1:9" in str(error)
        assert "proxies" in str(error)


@pytest.mark.parametrize("remote", REMOTES)
def test_a_silent_store_is_unreachable_soon(answers: AnswerServer, remote: str) -> None:
    """Within the time-out."""
    answers.reply = lambda _: Reply(silent=True)
    store = opened(remote, answers.url, REMOTES[remote], timeout_s=0.5)
    with pytest.raises(StoreUnreachableError, match="said nothing"):
        store.get("a")


@pytest.mark.parametrize("remote", REMOTES)
def test_a_cut_body_is_damage_that_can_be_resumed(answers: AnswerServer, remote: str) -> None:
    """The bytes so far are given, then an error; the data never just ends."""
    about = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
    answers.reply = lambda _: Reply(200, about, bytes(3 << 20), cut_after=2 << 20)
    content = opened(remote, answers.url, REMOTES[remote]).get("a")
    came: list[int] = []
    with pytest.raises(TransferDamagedError, match="broke"):
        came.extend(map(len, content.chunks))
    assert 0 < sum(came) <= 2 << 20


@pytest.mark.parametrize("remote", REMOTES)
def test_another_range_or_version_is_never_accepted(answers: AnswerServer, remote: str) -> None:
    """However a server answers the request."""
    about = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
    store = opened(remote, answers.url, REMOTES[remote])
    wrong = [
        Reply(206, {**about, "Content-Range": "bytes 3-6/10"}, b"3456"),
        Reply(206, {**about, "Content-Range": "bytes 2-3/10"}, b"23"),
        Reply(206, about, b"2345"),
        Reply(206, {**about, "Content-Range": "bytes 2-5/10", "ETag": '"2"'}, b"2345"),
    ]
    for reply in wrong:
        answers.reply = lambda _, reply=reply: reply  # type: ignore[misc]
        with pytest.raises(TransferDamagedError):
            store.get_range("a", 2, 6, version='"1"')
    answers.reply = lambda _: Reply(206, {**about, "Content-Range": "bytes 2-5/10"}, b"2345")
    assert store.get_range("a", 2, 6, version='"1"').data == b"2345"
    answers.reply = lambda _: Reply(206, {**about, "Content-Range": "bytes 4-9/10", "ETag": '"2"'}, b"456789")
    with pytest.raises(TransferDamagedError):
        store.get("a", offset=4, version='"1"')


@pytest.mark.parametrize("name", ["a//b", "a/../b", "./a", "a\tb"])
def test_a_name_that_the_client_refuses_is_an_error(answers: AnswerServer, name: str) -> None:
    """No other name is requested instead, and the error is not worth another attempt."""
    for remote in list(REMOTES)[:3]:
        with pytest.raises(StorageError, match="no such name") as caught:
            opened(remote, answers.url, REMOTES[remote]).get(name)
        assert type(caught.value) is StorageError
    assert answers.asked == []


def test_a_bucket_of_another_region_names_it(answers: AnswerServer) -> None:
    """The error names it if the answer does."""
    body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>m</Message><Region>eu-west-1</Region></Error>"
    answers.reply = lambda _: Reply(400, body=body)
    with pytest.raises(StoreMovedError, match=r"'eu-west-1'.*AWS_REGION"):
        opened("s3://bucket/prefix", answers.url, REMOTES["s3://bucket/prefix"]).get("a")


def test_a_web_server_says_how_long_to_wait(answers: AnswerServer) -> None:
    """The error has the seconds, also from a broken server."""
    store = opened("http://{host}/prefix", answers.url, {})
    for status in (429, 503):
        answers.reply = lambda _, status=status: Reply(status, {"Retry-After": "7"})  # type: ignore[misc]
        with pytest.raises(StoreBusyError) as caught:
            store.get("a")
        assert (caught.value.is_throttled, caught.value.retry_after_s) == (True, 7.0)


# --- real servers


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    yield from started(S3Server.started())


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    yield from started(AzureServer.started())


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    yield from started(GcsServer.started())


def test_faults_of_s3_are_distinguished(s3: S3Server) -> None:
    """A missing object, a missing bucket, a wrong key and no key are distinguished."""
    environment = {**s3.variables(), "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nowhere"}
    cases: list[tuple[str, dict[str, Any], type[StorageError], str]] = [
        ("s3://bkt/x", {}, ObjectMissingError, "keys AWS_ACCESS_KEY_ID"),
        ("s3://no-such/x", {}, ObjectMissingError, "no such bucket"),
        ("s3://bkt/x", {"key": "streaming", "secret": "no"}, ObjectForbiddenError, "keys of storage_options"),
        ("s3://bkt/x", {"anon": True}, ObjectForbiddenError, "`anonymous` in storage_options"),
    ]
    for remote, options, kind, words in cases:
        with pytest.raises(kind, match=words):
            Stores(environment).open(parse_remote(remote), 20.0, options).get("nothing")


def test_faults_of_azure_are_distinguished(azure: AzureServer, tmp_path: Path) -> None:
    """A missing blob or container, a wrong key, no key, an expired signature and a malformed key are distinguished."""
    cases: list[tuple[str, dict[str, Any], type[StorageError], str]] = [
        ("azure://box/x", {}, ObjectMissingError, "BlobNotFound.*AZURE_ACCOUNT_ACCESS_KEY"),
        ("azure://no-such/x", {}, ObjectMissingError, "no such bucket"),
        ("azure://box/x", {"account_key": SECRET}, ObjectForbiddenError, "account key of storage_options"),
        ("azure://box/x", {"anonymous": True}, ObjectForbiddenError, "no credentials"),
        ("azure://box/x", {"sas_token": azure.signed_query("rl", hours=-1)}, ObjectForbiddenError, "SAS token"),
    ]
    azure.put("x/there", b"abc")
    for remote, options, kind, words in cases:
        with pytest.raises(kind, match=words) as caught:
            Stores(azure.variables()).open(parse_remote(remote), 20.0, options).get("nothing")
        assert "sig=" not in str(caught.value)
        assert azure.endpoint() in str(caught.value)
    with pytest.raises(OptionError, match="cannot be opened"):
        Stores(azure.variables()).open(parse_remote("azure://box/x"), 20.0, {"account_key": "no base64"}).get("x")
    (tmp_path / "file").touch()
    reader = Stores(azure.variables()).open_for_uploads(
        parse_remote("azure://box/x"), {"sas_token": azure.signed_query("rl")}
    )
    with pytest.raises(ObjectForbiddenError, match="AuthorizationPermissionMismatch"):
        reader.put("a", str(tmp_path / "file"))


def test_faults_of_google_are_distinguished(gcs: GcsServer) -> None:
    """A missing object is an error. The emulator's variable alone suffices to read."""
    gcs.put("x/a b", b"0123456789")
    store = Stores({"HOME": "/nowhere", **gcs.variables()}).open(parse_remote("gs://bkt/x"), 20.0)
    assert b"".join(store.get("a b").chunks) == b"0123456789"
    part = store.get_range("a b", 2, 5)
    assert (part.data, part.facts.n_bytes) == (b"234", 10)
    assert [(facts.name, facts.version) for facts in store.list()] == [("a b", part.facts.version)]
    with pytest.raises(TransferDamagedError, match="changed"):  # this server ignores If-Match
        store.get("a b", version='"other"')
    with pytest.raises(ObjectMissingError, match="STORAGE_EMULATOR_HOST"):
        store.get("nothing")
