"""Large files, which come in parts over several connections."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from streaming.errors import StoreUnreachableError, TransferDamagedError
from streaming.fetch.transfer.parts import MIN_BYTES, PART_BYTES
from streaming.fetch.wire.protocol import FileRequest
from streaming.formats.hashing import hasher
from support.fetcher_world import Fault, FaultyStore, client_of, content, temporaries, wait_until
from support.fetching import fetch_all

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_BYTES = 16 * PART_BYTES  # 128 MiB


@pytest.fixture(scope="module")
def whole() -> bytes:
    """No two parts of it are equal."""
    return b"".join(content(str(i), 1 << 20) * (PART_BYTES >> 20) for i in range(N_BYTES // PART_BYTES))


@pytest.fixture(scope="module")
def hashed(whole: bytes) -> FileRequest:
    digest = hasher("xxh3_64")
    digest.update(whole)
    return FileRequest(0, "large", len(whole), hash_name="xxh3_64", hash_hex=digest.hexdigest())


@pytest.fixture
def large(store: FaultyStore, whole: bytes) -> FaultyStore:
    store.objects["d/large"] = whole
    return store


def is_same(path: str | Path, whole: bytes) -> bool:
    """Without a diff of 128 MiB where it is not."""
    return Path(path).read_bytes() == whole


def parts_asked(store: FaultyStore) -> Counter[int]:
    return Counter(begin for _, begin in store.ranges)


def test_each_part_is_fetched_once(tmp_path: Path, large: FaultyStore, hashed: FileRequest, whole: bytes) -> None:
    """Of a file that is waited for alone; several at the same time, nothing beside them, and no more than it has."""
    n_at_once, most, lock = [0], [0], threading.Lock()

    def look(_: str, __: bool) -> None:
        with lock:
            n_at_once[0] += 1
            most[0] = max(most[0], n_at_once[0])
        threading.Event().wait(0.05)  # a store with some latency
        with lock:
            n_at_once[0] -= 1

    large.rule = look
    with client_of("s3://bkt/d", tmp_path) as client:
        assert is_same(client.wait(hashed), whole)
        assert client.status()["remotes"]["s3://bkt/d"]["bytes"] == N_BYTES
    assert parts_asked(large) == Counter(dict.fromkeys(range(0, N_BYTES, PART_BYTES), 1))
    assert large.n_gets.total() == N_BYTES // PART_BYTES
    assert 4 <= most[0] <= 16
    assert temporaries(tmp_path) == []


def test_what_others_wait_for_comes_in_one(tmp_path: Path, store: FaultyStore) -> None:
    """Many files at once use the connections as well; so does a file that is not large."""
    n_bytes = MIN_BYTES
    store.objects |= {f"d/{i}": bytes(n_bytes) for i in range(20)}
    store.objects["d/small"] = bytes(MIN_BYTES - 1)
    with client_of("s3://bkt/d", tmp_path) as client:
        client.wait(FileRequest(0, "small", MIN_BYTES - 1))
        fetch_all(client, [FileRequest(0, str(i), n_bytes) for i in range(20)])
    assert not [key for key, _ in store.ranges if key == "d/small"]
    assert store.n_gets["d/0"] == 1


def test_a_part_that_was_cut_comes_again_alone(
    tmp_path: Path, large: FaultyStore, hashed: FileRequest, whole: bytes
) -> None:
    """The others are not fetched again; it counts as one of the attempts that are allowed."""
    cut = threading.Lock()

    def cut_one(_: str, is_range: bool) -> Fault | None:
        first = len(large.ranges) >= 5 and cut.acquire(blocking=False)
        return Fault(cut_after=1000) if first else None

    large.rule = cut_one
    with client_of("s3://bkt/d", tmp_path) as client:
        assert is_same(client.wait(hashed), whole)
    asked = parts_asked(large)
    assert sorted(asked) == list(range(0, N_BYTES, PART_BYTES))
    assert sorted(asked.values()) == [1] * 15 + [2]


def test_a_flipped_byte_costs_all_of_it_once_more(
    tmp_path: Path, large: FaultyStore, hashed: FileRequest, whole: bytes
) -> None:
    """The hash covers the file, so it cannot tell which part; flipped for ever it is an error, and nothing stays."""
    flip = threading.Lock()

    def flip_one(_: str, is_range: bool) -> Fault | None:
        first = len(large.ranges) >= 5 and flip.acquire(blocking=False)
        return Fault(flip=True) if first else None

    large.rule = flip_one
    with client_of("s3://bkt/d", tmp_path) as client:
        assert is_same(client.wait(hashed), whole)
        assert set(parts_asked(large).values()) == {2}
        os.unlink(tmp_path / "large")
        large.rule = lambda _, is_range: Fault(flip=True)
        with pytest.raises(TransferDamagedError, match=r"d/large: xxh3_64 is .* the index states .*attempt 2 of 2"):
            client.wait(hashed)
    assert temporaries(tmp_path) == []
    assert not (tmp_path / "large").exists()


def test_a_file_that_is_replaced_while_it_comes_is_of_one_version(
    tmp_path: Path, large: FaultyStore, whole: bytes
) -> None:
    """The new one, whole."""
    other = whole[::-1]
    swap = threading.Lock()

    def replace_once(_: str, is_range: bool) -> None:
        if len(large.ranges) >= 5 and swap.acquire(blocking=False):
            large.objects["d/large"] = other

    large.rule = replace_once
    with client_of("s3://bkt/d", tmp_path) as client:
        assert is_same(client.wait(FileRequest(0, "large", N_BYTES)), other)


def test_a_part_that_never_comes_is_an_error(tmp_path: Path, large: FaultyStore, hashed: FileRequest) -> None:
    """Soon, with as many attempts as allowed, and the fetcher is as it was."""
    large.rule = lambda _, is_range: Fault(silent=True) if len(large.ranges) >= 8 else None
    with client_of("s3://bkt/d", tmp_path, download_timeout=1.0) as client:
        with pytest.raises(StoreUnreachableError, match="attempt 2 of 2"):
            client.wait(hashed)
        wait_until("nothing moves", lambda: client.status()["moving"] == 0)
        assert temporaries(tmp_path) == []
        assert client.status()["known"] <= 1
