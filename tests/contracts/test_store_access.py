"""Credentials and routes as servers see them: accounts side by side, proxies, certificates, headers."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import ObjectForbiddenError, OptionError, StoreUnreachableError
from streaming.storage.buckets.s3 import region_of
from streaming.storage.open_stores import Stores
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.azure import AzureServer, account_key
from streaming.testing.s3 import S3Server
from streaming.testing.web import PASSWORD, USER, WebServer
from support.answers import AnswerServer, Question, Reply
from support.servers import started

ABOUT = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "here"}


@pytest.fixture
def answers() -> Iterator[AnswerServer]:
    with AnswerServer.started() as server:
        server.reply = lambda _: Reply(200, ABOUT, b"abc")
        yield server


def opened(remote: str, options: Mapping[str, Any] | None = None, **variables: str) -> Store:
    return Stores({"HOME": "/nowhere", **variables}).open(parse_remote(remote), 20.0, options)


def content(store: Store, name: str = "a") -> bytes:
    return b"".join(store.get(name).chunks)


# --- several accounts in one process


def test_two_s3_accounts_side_by_side(tmp_path: Path) -> None:
    """Each request has the key of its own stream, whatever the environment holds."""
    for one in started(S3Server.started(("first", "first-secret"))):
        for two in started(S3Server.started(("second", "second-secret"))):
            stores = Stores({"HOME": "/nowhere", **KEYS, "AWS_SESSION_TOKEN": "a token of somebody else"})
            opened_stores = []
            for server, name in ((one, "first"), (two, "second")):
                keys = {"access_key_id": name, "secret_access_key": f"{name}-secret", "endpoint": server.endpoint}
                server.put("x/a", name.encode())
                opened_stores.append(stores.open(parse_remote("s3://bkt/x"), 20.0, keys))
            for _ in range(3):
                assert [content(store) for store in opened_stores] == [b"first", b"second"]
            swapped = {"access_key_id": "first", "secret_access_key": "first-secret", "endpoint": two.endpoint}
            with pytest.raises(ObjectForbiddenError):
                content(stores.open(parse_remote("s3://bkt/x"), 20.0, swapped))


def test_two_azure_accounts_side_by_side() -> None:
    """The key of the environment is for its account; that of the other account is an option."""
    for server in started(AzureServer.started()):
        mine, other = server.accounts
        for account in server.accounts:
            server.put("x/a", account.encode(), account=account)
        stores = Stores({"HOME": "/nowhere", **server.variables(mine)})
        options = {"endpoint": server.endpoint(other), "account_key": account_key(other)}
        assert content(stores.open(parse_remote("azure://box/x"), 20.0)) == mine.encode()
        assert (
            content(stores.open(parse_remote(f"azure://{other}.blob.core.windows.net/box/x"), 20.0, options))
            == other.encode()
        )


# --- what a request says


def test_a_requester_who_pays_says_so(answers: AnswerServer) -> None:
    """The predecessor's list of buckets or an option says so; other requests do not."""
    cases: list[tuple[str, dict[str, Any], str | None]] = [
        ("s3://paid/x", {}, "requester"),
        ("s3://free/x", {}, None),
        ("s3://free/x", {"requester_pays": True}, "requester"),
        ("s3://paid/x", {"requester_pays": False}, None),
    ]
    variables = {**KEYS, "S3_ENDPOINT_URL": answers.url, "MOSAICML_STREAMING_AWS_REQUESTER_PAYS": "other,paid"}
    for remote, options, expected in cases:
        content(opened(remote, options, **variables))
        assert answers.asked[-1].headers.get("x-amz-request-payer") == expected


def test_an_acl_is_signed_and_goes_with_whole_objects(answers: AnswerServer, tmp_path: Path) -> None:
    """With S3_CANNED_ACL each upload is one request, however large; reads have no ACL."""
    variables = {**KEYS, "HOME": "/nowhere", "S3_ENDPOINT_URL": answers.url, "S3_CANNED_ACL": "public-read"}
    reported: list[int] = []
    for n_bytes in (0, 3, 20 << 20):
        whole = os.urandom(n_bytes)
        (tmp_path / "file").write_bytes(whole)
        Stores(variables).open_for_uploads(parse_remote("s3://bucket/x")).put(
            "a", str(tmp_path / "file"), moved=reported.append
        )
        question = answers.asked.pop()
        assert (question.method, question.target, question.body) == ("PUT", "/bucket/x/a", whole)
        assert question.headers["x-amz-acl"] == "public-read"
        assert "x-amz-acl" in question.headers["authorization"].partition("SignedHeaders=")[2]
    assert reported[-1] == 20 << 20
    assert answers.asked == []
    content(Stores(variables).open(parse_remote("s3://bucket/x"), 20.0))
    assert "x-amz-acl" not in answers.asked[-1].headers
    with open(tmp_path / "file", "wb") as file:
        file.truncate((1 << 29) + 1)
    with pytest.raises(OptionError, match=r"S3_CANNED_ACL.*size_limit"):
        Stores(variables).open_for_uploads(parse_remote("s3://bucket/x")).put("a", str(tmp_path / "file"))


def test_a_real_server_accepts_an_acl(tmp_path: Path) -> None:
    """The server accepts the signature."""
    for server in started(S3Server.started()):
        (tmp_path / "file").write_bytes(b"abc")
        stores = Stores({**server.variables(), "S3_CANNED_ACL": "private"})
        stores.open_for_uploads(parse_remote("s3://bkt/x")).put("a", str(tmp_path / "file"))
        assert server.get("x/a") == b"abc"


def test_an_anonymous_request_is_not_signed(answers: AnswerServer) -> None:
    """Although the environment has keys."""
    google = {"GOOGLE_BASE_URL": answers.url, "GCS_KEY": "k", "GCS_SECRET": "s"}
    azure = {"AZURE_STORAGE_ENDPOINT": answers.url, "AZURE_ACCOUNT_NAME": "acc", "AZURE_ACCOUNT_ACCESS_KEY": "QUJD"}
    places = {
        "s3://bucket/x": {**KEYS, "S3_ENDPOINT_URL": answers.url},
        "gs://bucket/x": google,
        "azure://bucket/x": azure,
    }
    for remote, variables in places.items():
        content(opened(remote, None, **variables))
        assert "authorization" in answers.asked[-1].headers
        content(opened(remote, {"anonymous": True}, **variables))
        assert "authorization" not in answers.asked[-1].headers


def test_a_virtual_host_has_the_buckets_name(answers: AnswerServer) -> None:
    """A proxy sees the host's name."""
    options = {"endpoint": "http://store.example", "virtual_hosted_style": True, "proxy": answers.url}
    content(opened("s3://bucket/x", options, **KEYS))
    assert answers.asked[-1].target == "http://bucket.store.example/x/a"


def test_a_web_server_gets_the_credentials(answers: AnswerServer) -> None:
    """Token, user, headers and signed query are sent, from options or from the URL."""
    host = answers.url.partition("://")[2]
    basic = "Basic " + base64.b64encode(b"me:p@ss").decode()
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        (f"http://{host}/x", {"token": "t"}, "Bearer t", "/x/a"),
        (f"http://{host}/x", {"user": "me", "password": "p@ss"}, basic, "/x/a"),
        (f"http://me:p%40ss@{host}/x", {}, basic, "/x/a"),
        (f"http://{host}/x", {"headers": {"Authorization": "Own way"}}, "Own way", "/x/a"),
        (f"http://{host}/x", {"query": "?sig=1&x=%2F", "token": "t"}, "Bearer t", "/x/a?sig=1&x=%2F"),
    ]
    for remote, options, authorization, target in cases:
        content(opened(remote, options))
        assert (answers.asked[-1].headers["authorization"], answers.asked[-1].target) == (authorization, target)
    with pytest.raises(OptionError, match="leave one out"):
        opened(f"http://me@{host}/x", {"user": "other"})
    with pytest.raises(OptionError, match="not both"):
        opened(f"http://{host}/x", {"user": "me", "token": "t"})


def test_secrets_do_not_follow_a_redirect_to_another_host(answers: AnswerServer) -> None:
    """Within the same host they do."""
    with AnswerServer.started() as other:
        other.reply = lambda _: Reply(200, ABOUT, b"there")

        def reply(question: Question) -> Reply:
            if question.target.startswith("/x"):
                return Reply(302, {"Location": f"{other.url}/y"})
            return Reply(302, {"Location": "/x/b"})

        answers.reply = reply
        store = opened(f"{answers.url}/start", {"token": "t", "headers": {"X-Key": "k"}})
        assert content(store) == b"there"
        assert [question.headers.get("x-key") for question in answers.asked] == ["k", "k"]
        assert not {"authorization", "x-key"} & set(other.asked[0].headers)


# --- ways


@pytest.mark.parametrize("remote", ["s3://bucket/x", "gs://bucket/x", "azure://bucket/x", "http://store.example/x"])
def test_an_option_sets_a_proxy(answers: AnswerServer, remote: str) -> None:
    """The proxy gets the whole URL; an excepted host is reached directly."""
    options: dict[str, Any] = {"proxy": answers.url}
    if not remote.startswith("http"):
        options["endpoint"] = "http://store.example"
    if remote.startswith("gs"):
        options["token"] = "t"
    if remote.startswith("azure"):
        options |= {"account_name": "acc", "anonymous": True}
    variables = KEYS if remote.startswith("s3") else {}
    assert content(opened(remote, options, **variables)) == b"abc"
    assert answers.asked[-1].target.startswith("http://store.example/")
    n_asked = len(answers.asked)
    with pytest.raises(StoreUnreachableError):
        content(opened(remote, {**options, "no_proxy": ".example"}, **variables))
    assert len(answers.asked) == n_asked


@pytest.mark.parametrize("remote", ["s3://bucket/x", "http://store.example/x"])
def test_the_environment_sets_a_proxy(answers: AnswerServer, remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY sets it, and NO_PROXY excepts hosts."""
    variables = {"HTTP_PROXY": answers.url, "NO_PROXY": "elsewhere"}
    for name in ("http_proxy", "no_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)  # obstore reads its process's own
    options = {"endpoint": "http://store.example"} if remote.startswith("s3") else {}
    assert content(opened(remote, options, **(KEYS | variables))) == b"abc"
    assert answers.asked[-1].target.startswith("http://store.example/")
    monkeypatch.setenv("NO_PROXY", "store.example")
    with pytest.raises(StoreUnreachableError):
        content(opened(remote, options, **{**KEYS, **variables, "NO_PROXY": "store.example"}))


def test_a_proxy_gets_user_and_password(answers: AnswerServer) -> None:
    """They are in its URL, which no message shows."""
    proxy = answers.url.replace("://", "://me:HIDDEN@")
    content(opened("http://store.example/x", {"proxy": proxy}))
    expected = "Basic " + base64.b64encode(b"me:HIDDEN").decode()
    assert answers.asked[-1].headers["proxy-authorization"] == expected
    answers.reply = lambda _: Reply(407)
    with pytest.raises(StoreUnreachableError, match="proxy") as caught:
        content(opened("http://store.example/x", {"proxy": proxy}))
    assert "HIDDEN" not in str(caught.value)


@pytest.fixture(scope="module")
def encrypted() -> Iterator[WebServer]:
    yield from started(WebServer.started(is_encrypted=True, more="location /bucket/ { alias root/; }"))


@pytest.mark.parametrize("remote", ["s3://bucket/x", "{url}/plain/x"])
def test_a_certificate_is_trusted_if_a_bundle_holds_it(encrypted: WebServer, remote: str, tmp_path: Path) -> None:
    """An option or AWS_CA_BUNDLE names the bundle; without it there is no connection, and the error says why."""
    assert encrypted.certificate is not None
    encrypted.put("x/a", b"secret matter")
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# Főtanúsítvány, as bundles have such words\n{Path(encrypted.certificate).read_text()}")
    url = f"https://127.0.0.1:{encrypted.port}"
    options = {"endpoint": url} if remote.startswith("s3") else {}
    place, direct = remote.format(url=url), {"NO_PROXY": "127.0.0.1", **KEYS}
    assert content(opened(place, {**options, "ca_bundle": str(bundle)}, **direct)) == b"secret matter"
    assert content(opened(place, options, AWS_CA_BUNDLE=str(bundle), **direct)) == b"secret matter"
    with pytest.raises(StoreUnreachableError, match="certificate"):
        content(opened(place, options, **direct))
    with pytest.raises(OptionError, match="cannot be read"):
        content(opened(place, {**options, "ca_bundle": "/no/such/file"}, **direct))
    bundle.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    with pytest.raises(OptionError, match=r"bundle.pem|cannot be opened"):
        content(opened(place, {**options, "ca_bundle": str(bundle)}, **direct))


def test_a_password_gives_access() -> None:
    """A real server checks it by basic authentication."""
    for server in started(WebServer.started()):
        server.put("x/a", b"abc")
        remote, options = server.url("x", habit="locked"), {"user": USER, "password": PASSWORD}
        assert content(opened(remote, options, NO_PROXY="127.0.0.1")) == b"abc"
        with pytest.raises(ObjectForbiddenError, match="no credentials"):
            content(opened(remote, NO_PROXY="127.0.0.1"))


def test_an_unset_region_of_a_bucket_is_requested(answers: AnswerServer) -> None:
    """AWS names it even in refusals; if AWS cannot be reached, the default is used."""
    settings = StoreSettings({}, {}, 20.0)
    for status in (200, 301, 400, 403, 404):
        answers.reply = lambda _, status=status: Reply(status, {"x-amz-bucket-region": "eu-west-9"})  # type: ignore[misc]
        assert region_of("bucket", settings, {}, endpoint=answers.url) == "eu-west-9"
    assert (answers.asked[-1].method, answers.asked[-1].target) == ("HEAD", "/bucket")
    answers.reply = lambda _: Reply(500)
    assert region_of("bucket", settings, {}, endpoint=answers.url) == "us-east-1"
    assert region_of("bucket", settings, {}, endpoint="http://127.0.0.1:9") == "us-east-1"
