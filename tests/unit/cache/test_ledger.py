"""The rules of the cache ledger, one by one. The laws over random histories are in `properties`."""

from __future__ import annotations

from streaming.cache.ledger import CachedFile, CacheLedger, NextUse

NEXT_USES = dict[str, NextUse]


def ledger_of(next_uses: NEXT_USES, limit_bytes: int, *paths: str) -> CacheLedger:
    """A ledger of files of one byte each, the first one unused for longest."""
    ledger = CacheLedger(lambda path: next_uses.get(path, NextUse(None, False)))
    ledger.limit_bytes = limit_bytes
    for age, path in enumerate(paths):
        ledger.put(path, CachedFile(1, float(age), is_evictable=True))
    return ledger


def test_unannounced_files_are_evicted_first_then_those_of_the_latest_next_use() -> None:
    """The longest unused before the others, then the furthest; never a file that is needed as soon as the newcomer."""
    next_uses = {"near": NextUse(1, False), "same": NextUse(5, False), "far": NextUse(9, False)}
    ledger = ledger_of(next_uses, 5, "near", "same", "far", "old", "new")
    evicted = [ledger.reserve(i, 1, 5, 100.0) for i in range(4)]
    assert evicted == [["old"], ["new"], ["far"], None]
    assert ledger.reserve("urgent", 1, -1, 100.0) == ["same"]


def test_a_pinned_file_stays_until_it_is_unpinned() -> None:
    """Even if nothing else can be evicted."""
    next_uses = {"a": NextUse(None, True)}
    ledger = ledger_of(next_uses, 1, "a")
    assert ledger.reserve("k", 1, -1, 100.0) is None
    next_uses["a"] = NextUse(None, False)
    ledger.next_use_changed("a")
    assert ledger.reserve("k", 1, -1, 100.0) == ["a"]


def test_a_file_that_was_waited_for_has_a_grace_period() -> None:
    """It is long enough to open the file; a clock that was put back does not extend it."""
    for later_s, evicted in ((100.5, None), (101.5, ["a"]), (50.0, ["a"])):
        ledger = ledger_of({}, 1, "a")
        ledger.used("a", 100.0, was_awaited=True)
        assert ledger.reserve("k", 1, -1, later_s) == evicted


def test_the_grace_period_ends_when_the_file_is_open() -> None:
    """A fast reader must not fill a small cache with files that it has read already."""
    ledger = ledger_of({}, 1, "a")
    ledger.used("a", 100.0, was_awaited=True)
    ledger.opened("a")
    assert ledger.reserve("k", 1, -1, 100.1) == ["a"]


def test_the_grace_period_ends_with_the_file() -> None:
    """A file that came again does not inherit it."""
    ledger = ledger_of({}, 1, "a")
    ledger.used("a", 100.0, was_awaited=True)
    ledger.put("a", CachedFile(1, 100.0, is_evictable=True))
    assert ledger.reserve("k", 1, -1, 100.5) == ["a"]


def test_a_file_used_in_the_future_is_evicted_last_but_is_evicted() -> None:
    """A clock that was wrong when a file was written must not keep it for ever."""
    ledger = ledger_of({}, 2, "a")
    ledger.put("future", CachedFile(1, 1e12, is_evictable=True))
    assert ledger.reserve("k", 2, -1, 100.0) == ["a", "future"]


def test_a_source_is_never_evicted() -> None:
    """Whatever is needed; its bytes count all the same."""
    ledger = ledger_of({}, 1)
    ledger.put("source", CachedFile(1, 0.0, is_evictable=False))
    assert ledger.reserve("k", 1, -1, 100.0) is None
    assert (ledger.n_bytes, ledger.n_unevictable_bytes) == (1, 1)


def test_a_victim_takes_its_room_until_it_is_deleted() -> None:
    """A second newcomer must not get room that is still taken on disk."""
    ledger = ledger_of({}, 10)
    ledger.put("large", CachedFile(10, 0.0, is_evictable=True))
    assert ledger.reserve("small", 2, 3, 0.0) == ["large"]
    assert ledger.reserve("second", 8, 4, 0.0) is None
    ledger.evicted("small")
    assert ledger.reserve("second", 8, 4, 0.0) == []
    assert ledger.n_bytes == 10


def test_a_refusal_changes_nothing() -> None:
    """The candidates that were too few stay, and go for a newcomer that needs less."""
    ledger = ledger_of({}, 3, "a", "b")
    ledger.put("source", CachedFile(1, 0.0, is_evictable=False))
    assert ledger.reserve("k", 3, -1, 100.0) is None
    assert ledger.n_bytes == 3
    assert ledger.reserve("k", 2, -1, 100.0) == ["a", "b"]


def test_a_cache_above_its_limit_shrinks() -> None:
    """Unannounced files go, then those of the latest next use; pinned files may keep it above."""
    next_uses = {"a": NextUse(0, True), "b": NextUse(1, False), "c": NextUse(2, False)}
    ledger = ledger_of(next_uses, 1, "a", "b", "c", "d")
    assert ledger.evict_excess("excess", 100.0) == ["d", "c", "b"]
    assert ledger.evict_excess("excess", 100.0) == []
    ledger.evicted("excess")
    assert ledger.n_bytes == 1


def test_files_of_an_unreadable_folder_are_kept() -> None:
    """Else a hiccup of a network disk would let the cache grow above its limit."""
    ledger = ledger_of({}, 10, "/c/d/a", "/c/e/b")
    ledger.begin_scan()
    ledger.end_scan({}, ["/c/d"])
    assert [path in ledger for path in ("/c/d/a", "/c/e/b")] == [True, False]


def test_a_file_that_changed_during_a_scan_keeps_its_newer_state() -> None:
    """The scan may have missed that it was placed or deleted."""
    ledger = ledger_of({}, 10, "goes", "stays")
    ledger.begin_scan()
    ledger.remove("goes")
    ledger.put("comes", CachedFile(1, 0.0, is_evictable=True))
    ledger.end_scan({path: CachedFile(1, 0.0, is_evictable=True) for path in ("goes", "stays", "new")})
    assert [path in ledger for path in ("goes", "stays", "comes", "new")] == [False, True, True, True]
