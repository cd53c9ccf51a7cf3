"""Large files, which come in parts over several connections."""

from __future__ import annotations

import bisect
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streaming.errors import StoreUnreachableError, TransferDamagedError
from streaming.fetch.transfer.parts import MIN_BYTES, PART_BYTES
from streaming.fetch.wire.protocol import FileRequest
from streaming.formats.hashing import hasher
from streaming.testing import Fault, FaultProxy, FaultRule, LoggedRequest, ProxyLimits
from support.fetcher_world import client_of, content, temporaries, wait_until
from support.fetching import fetch_all
from support.stores import SILENT, gets, put, ranges

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_BYTES = 16 * PART_BYTES  # 128 MiB
LATENCY_S = 0.05


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
def large(store: FaultProxy, whole: bytes) -> FaultProxy:
    put(store, {"d/large": whole})
    return store


def is_same(path: str | Path, whole: bytes) -> bool:
    """Without a diff of 128 MiB where it is not."""
    return Path(path).read_bytes() == whole


def most_at_once(log: Sequence[LoggedRequest]) -> int:
    """The most requests that waited for the store's latency at one moment."""
    began_s = sorted(entry.began_s for entry in log)
    return max(n + 1 - bisect.bisect(began_s, at_s - 0.9 * LATENCY_S) for n, at_s in enumerate(began_s))


def parts_asked(store: FaultProxy) -> Counter[int]:
    return Counter(begin for _, begin in ranges(store))


def test_each_part_is_fetched_once(tmp_path: Path, large: FaultProxy, hashed: FileRequest, whole: bytes) -> None:
    """Of a file that is waited for alone; several at the same time, nothing beside them, and no more than it has."""
    large.set_limits(ProxyLimits(latency_s=LATENCY_S))
    with client_of("s3://bkt/d", tmp_path) as client:
        assert is_same(client.wait(hashed), whole)
        assert client.status()["remotes"]["s3://bkt/d"]["bytes"] == N_BYTES
    assert parts_asked(large) == Counter(dict.fromkeys(range(0, N_BYTES, PART_BYTES), 1))
    assert gets(large).total() == N_BYTES // PART_BYTES
    assert 4 <= most_at_once(large.log()) <= 16
    assert temporaries(tmp_path) == []


def test_what_others_wait_for_comes_in_one(tmp_path: Path, store: FaultProxy) -> None:
    """Many files at once use the connections as well; so does a file that is not large."""
    n_bytes = MIN_BYTES
    put(store, {"d/small": bytes(MIN_BYTES - 1), **{f"d/{i}": bytes(n_bytes) for i in range(20)}})
    with client_of("s3://bkt/d", tmp_path) as client:
        client.wait(FileRequest(0, "small", MIN_BYTES - 1))
        fetch_all(client, [FileRequest(0, str(i), n_bytes) for i in range(20)])
    assert not [key for key, _ in ranges(store) if key == "d/small"]
    assert gets(store)["d/0"] == 1


def test_a_part_that_was_cut_comes_again_alone(
    tmp_path: Path, large: FaultProxy, hashed: FileRequest, whole: bytes
) -> None:
    """The others are not fetched again; it counts as one of the attempts that are allowed."""
    large.set_rules(FaultRule(Fault(cut_after=1000), skip=5, times=1))
    with client_of("s3://bkt/d", tmp_path) as client:
        assert is_same(client.wait(hashed), whole)
    asked = parts_asked(large)
    assert sorted(asked) == list(range(0, N_BYTES, PART_BYTES))
    assert sorted(asked.values()) == [1] * 15 + [2]


def test_a_flipped_byte_costs_all_of_it_once_more(
    tmp_path: Path, large: FaultProxy, hashed: FileRequest, whole: bytes
) -> None:
    """The hash covers the file, so it cannot tell which part; flipped for ever it is an error, and nothing stays."""
    large.set_rules(FaultRule(Fault(flip_at=0), skip=5, times=1))
    with client_of("s3://bkt/d", tmp_path) as client:
        assert is_same(client.wait(hashed), whole)
        assert set(parts_asked(large).values()) == {2}
        os.unlink(tmp_path / "large")
        large.set_rules(FaultRule(Fault(flip_at=0)))
        with pytest.raises(TransferDamagedError, match=r"d/large: xxh3_64 is .* the index states .*attempt 2 of 2"):
            client.wait(hashed)
    assert temporaries(tmp_path) == []
    assert not (tmp_path / "large").exists()


def test_a_file_that_is_replaced_while_it_comes_is_of_one_version(
    tmp_path: Path, large: FaultProxy, whole: bytes
) -> None:
    """The new one, whole."""
    other = whole[::-1]
    large.set_rules(FaultRule(SILENT, skip=5))
    with client_of("s3://bkt/d", tmp_path) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, FileRequest(0, "large", N_BYTES))
        wait_until("five parts have come, and another was asked for", lambda: large.counts().fired[0] > 0)
        put(large, {"d/large": other})
        large.set_rules()
        assert is_same(waiting.result(), other)


def test_a_part_that_never_comes_is_an_error(tmp_path: Path, large: FaultProxy, hashed: FileRequest) -> None:
    """Soon, with as many attempts as allowed, and the fetcher is as it was."""
    large.set_rules(FaultRule(SILENT, skip=8))
    with client_of("s3://bkt/d", tmp_path, download_timeout=1.0) as client:
        with pytest.raises(StoreUnreachableError, match="attempt 2 of 2"):
            client.wait(hashed)
        wait_until("nothing moves", lambda: client.status()["moving"] == 0)
        assert temporaries(tmp_path) == []
        assert client.status()["known"] <= 1
