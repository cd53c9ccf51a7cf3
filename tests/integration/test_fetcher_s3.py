"""A real S3 server: reading, writing, and the quick start, which uses the network and then forks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from streaming.errors import (
    MissingExtraError,
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StoreUnreachableError,
    StreamingError,
)
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest
from streaming.storage.url import parse_remote
from streaming.testing.s3 import S3Server
from support.fetcher_world import client_of, content, fetchers_of, read_and_compare, run_all, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def server(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, as the environment of this process says it is reached."""
    for name, value in s3_server.variables().items():
        monkeypatch.setenv(name, value)
    return s3_server


def test_the_quick_start_writes_and_then_forks(tmp_path: Path, server: S3Server) -> None:
    """Uploads in the parent, reads in the parent, then in forked workers, then in the parent again."""
    remote, cache = server.url("quick start", "train"), tmp_path / "cache"
    needs = [FileRequest(0, f"shard {i}.mds", 50_000) for i in range(12)]
    contents = [content(need.name, 50_000) for need in needs]
    with FetchClient(None, []) as writer:
        writer.check(parse_remote(remote))
        for need, whole in zip(needs, contents):
            (tmp_path / need.name).write_bytes(whole)
            writer.put(parse_remote(remote), str(tmp_path / need.name), need.name)
        assert writer.list_objects(parse_remote(remote)) == sorted(need.name for need in needs)
        assert writer.read_object(parse_remote(remote), needs[3].name) == contents[3]
    with client_of(remote, cache) as client:
        read_and_compare(client, needs[:2], contents[:2])
        run_all("fork", read_and_compare, [(client, needs[i::2], contents[i::2]) for i in range(2)])
        read_and_compare(client, needs, contents)
        assert client.status()["files"] == 12
    assert server.get("quick start/train/shard 0.mds") == contents[0]
    wait_until("the fetcher has ended", lambda: not fetchers_of(cache))


def test_a_large_upload_arrives_whole(tmp_path: Path, server: S3Server) -> None:
    """In several parts; an empty one too."""
    whole = content("large", 20 << 20)
    (tmp_path / "large").write_bytes(whole)
    (tmp_path / "empty").touch()
    with FetchClient(None, []) as client:
        for name in ("large", "empty"):
            client.put(parse_remote(server.url("big")), str(tmp_path / name), name)
        assert client.list_objects(parse_remote(server.url("big"))) == ["empty", "large"]
    with client_of(server.url("big"), tmp_path / "cache") as client:
        assert Path(client.wait(FileRequest(0, "large", len(whole)))).read_bytes() == whole
        assert Path(client.wait(FileRequest(0, "empty", 0))).read_bytes() == b""


@pytest.mark.parametrize("name", ["a b", "ümläut/日本", "a%20b", "a#b", "a?b=c&d", "a+b", "[x]~(y)"])
def test_names_are_what_they_are(tmp_path: Path, server: S3Server, name: str) -> None:
    """What is put under a name is listed, read and fetched under it, and is the object of that key."""
    (tmp_path / "file").write_bytes(name.encode())
    remote = server.url("odd names")
    with client_of(remote, tmp_path / "cache") as client:
        client.put(parse_remote(remote), str(tmp_path / "file"), name)
        assert name in client.list_objects(parse_remote(remote))
        assert client.read_object(parse_remote(remote), name) == name.encode()
        assert Path(client.wait(FileRequest(0, name, len(name.encode())))).read_bytes() == name.encode()
    assert server.get(f"odd names/{name}") == name.encode()


def test_a_target_that_fails_is_told_at_the_start(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bucket, no rights, nobody there, a setting that cannot be honoured, no such scheme."""
    cases: list[tuple[dict[str, str], str, type[StreamingError], str]] = [
        ({}, "s3://no-such-bucket/x", ObjectMissingError, "no such bucket"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, server.url("x"), ObjectForbiddenError, "SignatureDoesNotMatch"),
        ({"S3_ENDPOINT_URL": "http://127.0.0.1:9"}, server.url("x"), StoreUnreachableError, "127.0.0.1:9"),
        ({"S3_ENDPOINT_URL": "127.0.0.1:9"}, server.url("x"), OptionError, "http"),
        ({}, "nonsense://bucket/x", OptionError, "Unsupported remote path"),
    ]
    (tmp_path / "file").write_bytes(b"abc")
    for variables, remote, kind, words in cases:
        with monkeypatch.context() as patch, FetchClient(None, []) as client:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(kind, match=words):
                client.check(parse_remote(remote))
            if kind is not ObjectMissingError:  # this server makes a bucket when it is written to
                with pytest.raises(kind, match=words):
                    client.put(parse_remote(remote), str(tmp_path / "file"), "file", attempts=1)


def test_an_upload_of_nothing_is_an_error(tmp_path: Path, server: S3Server) -> None:
    """It names the file."""
    with FetchClient(None, []) as client, pytest.raises(StreamingError, match="nothing-here"):
        client.put(parse_remote(server.url("x")), str(tmp_path / "nothing-here"), "file")


def test_without_credentials_nobody_waits_for_a_cloud(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without keys, profile and role asks unsigned, soon, and says so; a profile needs its extra."""
    server.put("x/0", b"abc")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    began_s = time.monotonic()
    with (
        client_of(server.url("x"), tmp_path / "cache") as client,
        pytest.raises(ObjectForbiddenError, match="no credentials"),
    ):
        client.wait(FileRequest(0, "0", 3))
    assert time.monotonic() - began_s < 10
    monkeypatch.setenv("AWS_PROFILE", "someone")
    try:
        import boto3  # noqa: F401
    except ImportError:
        with (
            client_of(server.url("x"), tmp_path / "cache") as client,
            pytest.raises(MissingExtraError, match="aws-profile"),
        ):
            client.wait(FileRequest(0, "0", 3))


def test_no_secret_leaves_the_environment(tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not into argv, names, logs or files, even when credentials are refused."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecretindeed")
    cache = tmp_path / "cache"
    with client_of(server.url("x"), cache) as client:
        with pytest.raises(ObjectForbiddenError) as caught:
            client.wait(FileRequest(0, "0", 3))
        (fetcher,) = fetchers_of(cache)
        said = " ".join([*fetcher.cmdline(), str(caught.value), *map(str, cache.rglob("*"))])
        said += " ".join(path.read_text() for path in cache.rglob("*") if path.is_file())
    assert "verysecretindeed" not in said
    assert "not fetched" in said
