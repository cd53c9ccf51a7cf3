"""How often a store is asked for what it does not give: counted by the store, over all ways to a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streaming import StreamingDataset
from streaming.errors import (
    CredentialsExpiredError,
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreBusyError,
    StoreMovedError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.fetch.client import FetchClient
from streaming.fetch.transfer.parts import MIN_BYTES
from streaming.fetch.wire.protocol import FileRequest, Reason, Span
from streaming.testing import Fault, FaultProxy, FaultRule
from support.answers import AnswerServer, Question, Reply
from support.fetcher_world import client_of, content, wait_until
from support.fetching import read_ranges
from support.numbered import write_numbered
from support.stores import UNAVAILABLE, gets, put, put_folder

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_BYTES = 1_000_000
N_ATTEMPTS = 3

PERMANENT: dict[str, tuple[Fault, type[StorageError]]] = {
    "missing": (Fault(status=404), ObjectMissingError),
    "no bucket": (Fault(status=404, code="NoSuchBucket"), ObjectMissingError),
    "forbidden": (Fault(status=403), ObjectForbiddenError),
    "not taken": (Fault(status=401), CredentialsExpiredError),
    "expired": (Fault(status=400, code="ExpiredToken"), CredentialsExpiredError),
    "moved": (Fault(status=301), StoreMovedError),
    "strange": (Fault(status=418), StorageError),
}
TRANSIENT: dict[str, tuple[Fault, type[StorageError]]] = {
    "unavailable": (UNAVAILABLE, StoreBusyError),
    "reset": (Fault(reset="before"), StoreUnreachableError),
    "cut": (Fault(cut_after=0), TransferDamagedError),
}


def _whole(client: FetchClient, file: FileRequest) -> None:
    client.wait(file)


def _range(client: FetchClient, file: FileRequest) -> None:
    read_ranges(client, [Span(file, 0, 100)], Reason.RANDOM)


def _ahead(client: FetchClient, file: FileRequest) -> None:
    read_ranges(client, [Span(file, 100, 200)], Reason.AHEAD)


def _at_once(client: FetchClient, file: FileRequest) -> None:
    """All ways at the same time; every one must fail."""
    with ThreadPoolExecutor(3) as pool:
        errors = [each.exception() for each in [pool.submit(way, client, file) for way in (_whole, _range, _ahead)]]
    assert all(isinstance(error, StorageError) for error in errors), errors
    assert errors[0] is not None
    raise errors[0]


def _announced(client: FetchClient, file: FileRequest) -> None:
    """As a reader of an epoch does."""
    client.announce("reader", [file])
    _at_once(client, file)


WAYS: dict[str, list[Callable[[FetchClient, FileRequest], None]]] = {
    "whole": [_whole],
    "range": [_range],
    "ahead, then whole": [_ahead, _whole],
    "range, then whole": [_range, _whole],
    "whole, then range": [_whole, _range],
    "all at once": [_at_once],
    "announced, and all at once": [_announced],
}


def refused(client: FetchClient, file: FileRequest, ways: str, *kinds: type[StorageError]) -> None:
    """Ask for the file in these ways; each must raise one of these kinds."""
    for way in WAYS[ways]:
        with pytest.raises(StorageError) as caught:
            way(client, file)
        assert type(caught.value) in kinds, caught.value


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("n_bytes", [N_BYTES, MIN_BYTES])
@pytest.mark.parametrize("name", PERMANENT)
def test_a_permanent_refusal_costs_one_request(
    tmp_path: Path, store: FaultProxy, name: str, n_bytes: int, ways: str
) -> None:
    """Whatever the number of attempts, and whichever ways the file is asked for. Other files come as ever."""
    fault, kind = PERMANENT[name]
    put(store, {"d/bad": content("bad", n_bytes), "d/good": content("good", N_BYTES)})
    store.set_rules(FaultRule(fault, path="/d/bad$"))
    with client_of("s3://bkt/d", tmp_path, download_retry=N_ATTEMPTS) as client:
        refused(client, FileRequest(0, "bad", n_bytes), ways, kind)
        assert Path(client.wait(FileRequest(0, "good", N_BYTES))).read_bytes() == content("good", N_BYTES)
    assert gets(store)["d/bad"] == 1


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("n_bytes", [N_BYTES, MIN_BYTES])
@pytest.mark.parametrize("name", TRANSIENT)
def test_attempts_count_over_all_ways(tmp_path: Path, store: FaultProxy, name: str, n_bytes: int, ways: str) -> None:
    """`download_retry` is what the store sees, however the file is asked for."""
    fault, kind = TRANSIENT[name]
    put(store, {"d/bad": content("bad", n_bytes)})
    store.set_rules(FaultRule(fault, path="/d/bad$"))
    with client_of("s3://bkt/d", tmp_path, download_retry=N_ATTEMPTS) as client:
        # Whether a reset comes before an answer or within it is for the kernel to say.
        refused(client, FileRequest(0, "bad", n_bytes), ways, kind, TransferDamagedError)
    # The head of an answer lets other requests go, and the cut comes after it: those that go then are not taken back.
    n_beside = 2 if name == "cut" and "at once" in ways else 0
    assert N_ATTEMPTS <= gets(store)["d/bad"] <= N_ATTEMPTS + n_beside


@pytest.mark.parametrize("name", ["missing", "forbidden", "unavailable"])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_an_epoch_asks_no_more(tmp_path: Path, store: FaultProxy, name: str, n_workers: int) -> None:
    """A reader that asks ahead by range, announces shards and waits for them; also several readers at once."""
    fault, kind = (PERMANENT | TRANSIENT)[name]
    source = tmp_path / "source"
    write_numbered(str(source), 600)
    shard = sorted(path.name for path in source.glob("*.mds"))[0]
    url = put_folder(store, source, "d")
    store.set_rules(FaultRule(fault, path=rf"/{shard}$"))
    data = StreamingDataset(remote=url, local=str(tmp_path / "cache"), batch_size=4, download_retry=N_ATTEMPTS)
    with data, pytest.raises(kind):
        for _ in DataLoader(data, batch_size=4, num_workers=n_workers):
            pass
    assert gets(store)[f"d/{shard}"] == (1 if name in PERMANENT else N_ATTEMPTS)


def test_what_was_refused_may_come_later(tmp_path: Path, store: FaultProxy) -> None:
    """A refusal does not stand for ever: who puts the object there, or mends its policy, gets it."""
    put(store, {"d/bad": content("bad", N_BYTES)})
    file = FileRequest(0, "bad", N_BYTES)
    with client_of("s3://bkt/d", tmp_path, download_retry=N_ATTEMPTS) as client:
        for fault, _ in [*PERMANENT.values(), *TRANSIENT.values()]:
            store.set_rules(FaultRule(fault))
            with pytest.raises(StorageError):
                _range(client, file)
            store.set_rules()
            _until_it_comes(lambda: _range(client, file))
        assert Path(client.wait(file)).read_bytes() == content("bad", N_BYTES)


def _until_it_comes(ask: Callable[[], None]) -> None:
    """Ask again until the refusal has been forgotten, which the fetcher does after some seconds."""

    def came() -> bool:
        try:
            ask()
        except StorageError:
            return False
        return True

    wait_until("it comes", came)


STORES: dict[str, dict[str, object]] = {
    "s3://bucket/d": {"access_key_id": "me", "secret_access_key": "s", "region": "here"},
    "gs://bucket/d": {"token": "t"},
    "azure://bucket/d": {"account_name": "acc", "account_key": "QUFB"},
    "oss://bucket/d": {"access_key_id": "me", "secret_access_key": "s", "virtual_hosted_style": False},
    "r2://bucket/d": {"access_key_id": "me", "secret_access_key": "s"},
    "oci://bucket@namespace/d": {"access_key_id": "me", "secret_access_key": "s", "region": "here"},
    "http://{host}/d": {},
    "dbfs:/Volumes/a/b/c/d": {"token": "t"},
    "dbfs:/d": {"token": "t"},
    "hf://datasets/org/name/d": {"token": "t"},
}


@pytest.fixture
def answers() -> Iterator[AnswerServer]:
    with AnswerServer.started() as server:
        yield server


@pytest.mark.parametrize("status", [400, 401, 403, 404])
@pytest.mark.parametrize("remote", STORES)
def test_every_store_asks_once(
    tmp_path: Path, answers: AnswerServer, remote: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By range, then whole: one request in all."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    options = STORES[remote]
    if "{host}" not in remote:
        options = {"endpoint": answers.url, **options}

    def reply(_: Question) -> Reply:
        return Reply(status)

    answers.reply = reply
    host = answers.url.partition("://")[2]
    file = FileRequest(0, "bad", N_BYTES)
    with client_of(
        remote.format(host=host), tmp_path / "cache", options=json.dumps(options), download_retry=N_ATTEMPTS
    ) as client:
        for way in (_range, _whole):
            with pytest.raises(StorageError):
                way(client, file)
    assert len(answers.asked) == 1, [(each.method, each.target) for each in answers.asked]
