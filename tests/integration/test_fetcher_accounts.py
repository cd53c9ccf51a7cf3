"""Several clients and accounts at one fetcher: whose transfer it is, and whose failure."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import ObjectForbiddenError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import FileRequest, Reason, Request, Span, StreamConfig
from streaming.testing import FaultProxy, ProxyLimits
from streaming.testing.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from support.fetcher_world import PATIENCE_S, content, fetchers_of
from support.fetching import read_ranges, stream_config
from support.stores import contents, gets, put

N_FILES = 12
N_BYTES = 40_000
SLOW_BYTES = 8 << 20
RIGHT = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
WRONG = {"access_key_id": ACCESS_KEY, "secret_access_key": "not it"}


# --- a transfer that nobody announced


class SlowToAskAgain:
    """A client that does something else for a moment before it asks again, as on a busy machine."""

    def __init__(self) -> None:
        self.n_pending = 0

    def pending(self) -> None:
        """See WaitObserver."""
        self.n_pending += 1
        time.sleep(0.6)

    def ended(self, request: Request, waited_s: float) -> None:
        """See WaitObserver."""


@contextlib.contextmanager
def busy_with_others(local: Path, names: list[str]) -> Iterator[None]:
    """In the block another job has the fetcher begin, end and forget transfers, about twenty times a second."""
    is_over = threading.Event()

    def keep_busy() -> None:
        with FetchClient(str(local), [stream_config("s3://bkt/data", str(local))]) as other:
            for name in names:
                if is_over.wait(0.05):
                    return
                other.announce("another", [FileRequest(0, name, 100)])

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("announced", [False, True])
def test_a_slow_file_is_fetched_once_whatever_else_happens(store: FaultProxy, tmp_path: Path, announced: bool) -> None:
    """It takes several waiting slices, and its waiter asks late after each. No index states its size, as for videos."""
    small = [f"small-{i}" for i in range(400)]
    put(store, contents({"data/slow": SLOW_BYTES, **{f"data/{name}": 100 for name in small}}))
    store.set_limits(ProxyLimits(connection_bytes_per_s=SLOW_BYTES / 4.5))
    observer, slow = SlowToAskAgain(), FileRequest(0, "slow", -1)
    config = stream_config("s3://bkt/data", str(tmp_path), has_index=False)
    with FetchClient(str(tmp_path), [config], observer=observer) as client, busy_with_others(tmp_path, small):
        if announced:
            client.announce("r", [slow])
        assert Path(client.wait(slow)).read_bytes() == content("data/slow", SLOW_BYTES)
    assert observer.n_pending >= 3
    assert gets(store)["data/slow"] == 1


# --- accounts


def with_options(remote: str, local: Path, options: Mapping[str, str]) -> FetchClient:
    """A job with `storage_options`."""
    return FetchClient(str(local), [stream_config(remote, str(local), options=json.dumps(options))])


def with_function(remote: str, local: Path, options: Mapping[str, str]) -> FetchClient:
    """A job with a function that gives credentials."""

    def credentials() -> Mapping[str, Any]:
        return {**options, "expires_at": time.time() + 3600}

    return FetchClient(str(local), [stream_config(remote, str(local))], providers={0: credentials})


@pytest.fixture
def remote(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A folder of files in a bucket that checks signatures; the environment has no keys."""
    for name, value in s3_server.variables().items():
        if not name.startswith("AWS_") or name == "AWS_REGION":
            monkeypatch.setenv(name, value)
    for i in range(N_FILES):
        s3_server.put(f"{tmp_path.name}/{i}", content(str(i), N_BYTES))
    return s3_server.url(tmp_path.name)


@pytest.mark.parametrize("make", [with_options, with_function])
@pytest.mark.parametrize("announced", [False, True])
def test_only_the_account_that_is_refused_fails(remote: str, tmp_path: Path, make: Any, announced: bool) -> None:
    """Two jobs share a cache and wait for the same files at the same time, one of them with a wrong key."""
    files = [FileRequest(0, str(i), N_BYTES) for i in range(N_FILES)]
    local = tmp_path / "cache"
    refused: list[Exception] = []

    def wait_with_the_wrong_key(client: FetchClient) -> None:
        for file in files:
            try:
                client.wait(file)
            except ObjectForbiddenError as error:
                refused.append(error)

    with make(remote, local, WRONG) as wrong, make(remote, local, RIGHT) as right:
        wrong.hold()
        right.hold()
        if announced:
            wrong.announce("r", files)
            right.announce("r", files)
        else:
            with pytest.raises(ObjectForbiddenError):
                wrong.wait(files[0])  # before anybody has fetched it
        waiting = threading.Thread(target=wait_with_the_wrong_key, args=(wrong,))
        waiting.start()
        for i, file in enumerate(files):
            assert Path(right.wait(file)).read_bytes() == content(str(i), N_BYTES)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        # What is in the cache is there for all.
        assert Path(wrong.wait(files[0])).read_bytes() == content("0", N_BYTES)
        assert len(fetchers_of(local)) == 1


@pytest.mark.parametrize("make", [with_options, with_function])
def test_ranges_of_one_account_are_not_given_to_another(remote: str, tmp_path: Path, make: Any) -> None:
    """The same bytes, asked for at the same time."""
    local = tmp_path / "cache"
    spans = [Span(FileRequest(0, str(i), N_BYTES), 100, 200) for i in range(N_FILES)]
    outcomes: list[str] = []

    def read_with_the_wrong_key(client: FetchClient) -> None:
        for span in spans:
            try:
                read_ranges(client, [span], Reason.RANDOM)
                outcomes.append("read")
            except ObjectForbiddenError:
                outcomes.append("refused")

    with make(remote, local, WRONG) as wrong, make(remote, local, RIGHT) as right:
        reading = threading.Thread(target=read_with_the_wrong_key, args=(wrong,))
        reading.start()
        for i, span in enumerate(spans):
            (part,) = read_ranges(right, [span], Reason.RANDOM)
            assert part is not None
            assert bytes(part) == content(str(i), N_BYTES)[100:200]
        reading.join(PATIENCE_S)
    assert outcomes == ["refused"] * N_FILES


def test_streams_of_one_job_have_accounts_of_their_own(remote: str, tmp_path: Path) -> None:
    """Two streams of one remote into two folders: the one with the wrong key fails, the other does not."""
    configs: list[StreamConfig] = [
        stream_config(remote, str(tmp_path / name), options=json.dumps(options))
        for name, options in (("wrong", WRONG), ("right", RIGHT))
    ]
    with FetchClient(str(tmp_path), configs) as client:
        client.announce("r", [FileRequest(stream, str(i), N_BYTES) for i in range(N_FILES) for stream in range(2)])
        for i in range(N_FILES):
            assert Path(client.wait(FileRequest(1, str(i), N_BYTES))).read_bytes() == content(str(i), N_BYTES)
            with pytest.raises(ObjectForbiddenError):
                client.wait(FileRequest(0, str(i), N_BYTES))
    assert not list((tmp_path / "wrong").glob("[0-9]*"))
