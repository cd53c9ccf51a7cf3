"""Credentials that the user's own function gives, against a store that notes who asks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from streaming import Stream, StreamingDataset
from streaming.errors import ObjectForbiddenError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest, Reason, Span
from streaming.testing import Fault, FaultProxy, FaultRule, LoggedRequest
from support.fetcher_world import client_of, fetchers_of, wait_until
from support.fetching import read_ranges, stream_config
from support.numbered import checked_id, write_numbered
from support.stores import fill, put_folder


class Provider:
    """Gives keys numbered in the order of calls, each good for `life_s`; fails in the calls of `failing`."""

    def __init__(self, life_s: float, failing: frozenset[int] = frozenset()) -> None:
        self.life_s, self.failing = life_s, failing
        self.n_calls = 0
        self.ends_s: dict[str, float] = {}

    def __call__(self) -> Mapping[str, Any]:
        self.n_calls += 1
        if self.n_calls in self.failing:
            raise ConnectionRefusedError("the token service is down")
        token = f"token{self.n_calls}"
        self.ends_s[token] = time.time() + self.life_s
        return {
            "access_key_id": f"key{self.n_calls}",
            "secret_access_key": "s",
            "session_token": token,
            "expires_at": self.ends_s[token],
        }


def key_of(request: LoggedRequest) -> str:
    """The access key with which a request was signed."""
    found = re.search(r"Credential=([^/]+)/", request.headers["authorization"])
    return found[1] if found else ""


def token_of(request: LoggedRequest) -> str:
    """The session token that a request carried."""
    return request.headers.get("x-amz-security-token", "")


def client_with(provider: Provider, local: Path) -> FetchClient:
    config = stream_config("s3://bkt/data", str(local), download_retry=3)
    return FetchClient(str(local), [config], providers={0: provider})


def test_a_function_is_asked_when_needed_and_before_the_end(store: FaultProxy, tmp_path: Path) -> None:
    """Every request carries a token that was good when it was sent; the function is called a few times in all."""
    contents = fill(store, "data", 40, 20_000)
    provider = Provider(life_s=1.5)
    needs = [FileRequest(0, str(i), 20_000) for i in range(40)]
    with client_with(provider, tmp_path) as client:
        for i, need in enumerate(needs):
            client.announce("r", needs[i : i + 3])
            assert Path(client.wait(need)).read_bytes() == contents[i]
            time.sleep(0.1)  # so that the life of several tokens passes
    assert len(store.log()) == 40
    for request in store.log():
        token = token_of(request)
        assert key_of(request) == token.replace("token", "key")
        moment_s = time.time() - time.monotonic() + request.began_s
        assert moment_s <= provider.ends_s[token] + 0.1
    assert 2 <= provider.n_calls <= 20


def test_read_ahead_goes_on_when_credentials_come(store: FaultProxy, tmp_path: Path) -> None:
    """What was announced before anybody waited comes too."""
    fill(store, "data", 10, 1000)
    with client_with(Provider(life_s=3600), tmp_path) as client:
        client.announce("r", [FileRequest(0, str(i), 1000) for i in range(10)])
        wait_until("all files are there", lambda: all((tmp_path / str(i)).exists() for i in range(10)))


def test_a_renewal_that_fails_is_tried_again(store: FaultProxy, tmp_path: Path) -> None:
    """Three failures in a row cost no read."""
    fill(store, "data", 1, 1000)
    provider = Provider(life_s=3600, failing=frozenset({1, 2, 3}))
    with client_with(provider, tmp_path) as client:
        client.wait(FileRequest(0, "0", 1000))
    assert provider.n_calls == 4


def test_a_function_that_never_gives_any_is_an_error_that_says_so(store: FaultProxy, tmp_path: Path) -> None:
    """With what it failed with; expired ones are not sent."""
    fill(store, "data", 1, 1000)
    never = Provider(3600, frozenset(range(100)))
    with client_with(never, tmp_path / "a") as client, pytest.raises(ObjectForbiddenError, match="service is down"):
        client.wait(FileRequest(0, "0", 1000))
    stale = Provider(life_s=-1)
    with client_with(stale, tmp_path / "b") as client, pytest.raises(ObjectForbiddenError, match="still good"):
        client.wait(FileRequest(0, "0", 1000))
    assert store.log() == []


def test_ranges_too_and_after_the_fetcher_died(store: FaultProxy, tmp_path: Path) -> None:
    """The next fetcher has an empty credentials_key, and asks."""
    whole = fill(store, "data", 1, 100_000)[0]
    provider = Provider(life_s=3600)
    with client_with(provider, tmp_path) as client:
        need = FileRequest(0, "0", 100_000)
        for n_calls in (1, 2):
            (part,) = read_ranges(client, [Span(need, 5, 500)], Reason.RANDOM)
            assert part is not None
            assert bytes(part) == whole[5:500]
            assert provider.n_calls == n_calls
            for process in fetchers_of(tmp_path):
                process.kill()
                process.wait()


def test_what_the_store_calls_expired_is_renewed(store: FaultProxy, tmp_path: Path) -> None:
    """Whatever end the function had named."""
    fill(store, "data", 1, 1000)
    store.set_rules(FaultRule(Fault(status=400, code="ExpiredToken"), times=1))
    provider = Provider(life_s=3600)
    with client_with(provider, tmp_path) as client:
        client.wait(FileRequest(0, "0", 1000))
    assert [token_of(request) for request in store.log()] == ["token1", "token2"]


def test_accounts_do_not_mix(store: FaultProxy, tmp_path: Path) -> None:
    """Two streams of one dataset, each with keys of its own: one by options, one by a function."""
    for name in "ab":
        write_numbered(str(tmp_path / name), 20, first=100 * (name == "b"))
        put_folder(store, tmp_path / name, name)
    provider = Provider(life_s=3600)
    keys = {"access_key_id": "mine", "secret_access_key": "hidden-secret"}
    streams = [
        Stream(remote="s3://bkt/a", local=str(tmp_path / "cache" / "a"), storage_options=keys),
        Stream(remote="s3://bkt/b", local=str(tmp_path / "cache" / "b"), storage_options={"credentials": provider}),
    ]
    assert "hidden-secret" not in repr(streams)
    with StreamingDataset(streams=streams) as dataset:
        assert sorted(map(checked_id, dataset)) == [*range(20), *range(100, 120)]
    assert {key_of(request) for request in store.log()} == {"mine", "key1"}


def test_no_secret_is_in_any_file_or_message(store: FaultProxy, tmp_path: Path) -> None:
    """Neither in the fetcher's log, nor in its command, nor in an error."""
    fill(store, "data", 1, 1000)
    store.set_rules(FaultRule(Fault(status=403), times=3))
    config = stream_config(
        "s3://bkt/data", str(tmp_path), options='{"access_key_id": "mine", "secret_access_key": "hidden-secret"}'
    )
    with FetchClient(str(tmp_path), [config]) as client:
        with pytest.raises(ObjectForbiddenError) as caught:
            client.wait(FileRequest(0, "0", 1000))
        commands = [" ".join(process.cmdline()) for process in fetchers_of(tmp_path)]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for text in (str(caught.value), repr(config), *commands, *map(repr, files)):
        assert "hidden-secret" not in text


def test_two_remotes_of_one_cache_do_not_meet(tmp_path: Path) -> None:
    """Equal names, different contents, one `local`, one after the other and at once: each gets its own."""
    for name in "ab":
        write_numbered(str(tmp_path / name), 30, first=1000 * (name == "b"), size_limit=1000)
    expected = {"a": list(range(30)), "b": list(range(1000, 1030))}
    for _ in range(2):
        for name in "abba":
            with StreamingDataset(remote=str(tmp_path / name), local=str(tmp_path / "cache")) as dataset:
                assert [checked_id(sample) for sample in dataset[:]] == expected[name]
    both = [Stream(remote=str(tmp_path / name), local=str(tmp_path / "cache2")) for name in "ab"]
    with StreamingDataset(streams=both) as dataset:
        assert [checked_id(sample) for sample in dataset[:]] == expected["a"] + expected["b"]


def test_a_cache_of_another_loader_is_used(tmp_path: Path) -> None:
    """One that says nothing of its remote is taken as it is."""
    write_numbered(str(tmp_path / "a"), 30)
    with client_of(tmp_path / "a", tmp_path / "cache") as client:
        client.wait(FileRequest(0, "index.json", -1))
    (tmp_path / "cache" / ".streaming-source").unlink()
    with StreamingDataset(remote="s3://nowhere/else", local=str(tmp_path / "cache")) as dataset:
        assert dataset.size == 30
