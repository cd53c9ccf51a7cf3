"""Laws of a file that comes in parts, whatever fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import StoreUnreachableError, TransferDamagedError
from streaming.fetch.transfer.parts import PART_BYTES, Parts
from streaming.storage.store import ObjectFacts, Part


@pytest.fixture(scope="module")
def connections() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@dataclass
class Store:
    """Each request fails or not, and the object is replaced before some of them, as told."""

    fates: list[str]  # of the requests, in their order; then all go well
    refuses_others: bool  # of another version than was asked for, as a good store does
    version: int = 0
    asked: Counter[int] = field(default_factory=Counter)  # by first byte
    failed: Counter[int] = field(default_factory=Counter)
    came: dict[int, str] = field(default_factory=dict)  # first byte → version of the bytes in the file now
    n_running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, begin: int, end: int, version: str | None) -> Part:
        assert begin % PART_BYTES == 0
        assert 0 < end - begin <= PART_BYTES
        with self._lock:
            self.n_running += 1
            self.asked[begin] += 1
            fate = self.fates.pop(0) if self.fates else "good"
            self.version += fate == "replaced"
            found = f"v{self.version}"
        try:
            if fate == "broken":
                self.failed[begin] += 1
                raise StoreUnreachableError("broken")
            if self.refuses_others and version not in (None, found):
                raise TransferDamagedError("changed")
            self.came[begin] = found
            return Part(ObjectFacts("f", 1, found), b"")
        finally:
            with self._lock:
                self.n_running -= 1


FATES = st.lists(st.sampled_from(["good", "good", "good", "broken", "replaced"]), max_size=12)


@settings(max_examples=300)
@given(FATES, st.booleans(), st.integers(1, 6 * PART_BYTES), st.integers(1, 5))
def test_the_file_is_whole_and_of_one_version(
    connections: ThreadPoolExecutor, fates: list[str], refuses_others: bool, n_bytes: int, n_connections: int
) -> None:
    """After enough attempts, whatever fails in between; nothing runs on when an attempt has ended."""
    store = Store(fates, refuses_others)
    parts = Parts(n_bytes, "f")
    for _ in range(len(fates) + 1):
        try:
            parts.fetch_missing(store.fetch, connections, n_connections)
        except (StoreUnreachableError, TransferDamagedError):
            assert store.n_running == 0
            continue
        break
    else:
        raise AssertionError("it never came")
    assert sorted(store.came) == list(range(0, n_bytes, PART_BYTES))
    assert len(set(store.came.values())) == 1


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["good", "broken"]), max_size=8), st.integers(1, 6 * PART_BYTES), st.integers(1, 5))
def test_what_has_come_is_not_asked_for_again(
    connections: ThreadPoolExecutor, fates: list[str], n_bytes: int, n_connections: int
) -> None:
    """Each part is asked for once, and once more for each time that it failed."""
    store = Store(fates, refuses_others=True)
    parts = Parts(n_bytes, "f")
    for _ in range(9):
        try:
            parts.fetch_missing(store.fetch, connections, n_connections)
        except StoreUnreachableError:
            continue
        break
    assert store.asked == Counter(dict.fromkeys(range(0, n_bytes, PART_BYTES), 1)) + store.failed
    parts.fetch_missing(store.fetch, connections, n_connections)
    assert store.asked.total() == len(range(0, n_bytes, PART_BYTES)) + store.failed.total()


def test_what_was_wrong_is_fetched_anew(connections: ThreadPoolExecutor) -> None:
    """All of it: a hash says that something is wrong, not what."""
    store = Store([], refuses_others=True)
    parts = Parts(3 * PART_BYTES, "f")
    parts.fetch_missing(store.fetch, connections, 2)
    parts.forget()
    parts.fetch_missing(store.fetch, connections, 2)
    assert set(store.asked.values()) == {2}


def test_a_store_that_ignores_versions_is_found_out(connections: ThreadPoolExecutor) -> None:
    """By what it says of each part; the error names the file and both versions."""
    store = Store(["good", "replaced"], refuses_others=False)
    with pytest.raises(TransferDamagedError, match=r"^s3://b/f was replaced .* version v1, those before of v0"):
        Parts(2 * PART_BYTES, "s3://b/f").fetch_missing(store.fetch, connections, 1)
