"""The rules of the shelf, one by one. The laws over random histories are in `properties`."""

from __future__ import annotations

from streaming.cache.ledger import CacheLedger, Lying, Need

NEEDS = dict[str, Need]


def shelf_of(needs: NEEDS, limit_bytes: int, *paths: str) -> CacheLedger:
    """One byte each, the first unused for longest."""
    shelf = CacheLedger(lambda path: needs.get(path, Need(None, False)))
    shelf.limit_bytes = limit_bytes
    for age, path in enumerate(paths):
        shelf.put(path, Lying(1, float(age), may_go=True))
    return shelf


def test_what_no_list_has_goes_first_then_what_is_needed_last() -> None:
    """The longest unused first; the furthest first; never what is needed as soon as the newcomer."""
    needs = {"near": Need(1, False), "same": Need(5, False), "far": Need(9, False)}
    shelf = shelf_of(needs, 5, "near", "same", "far", "old", "new")
    went = [shelf.promise(i, 1, 5, 100.0) for i in range(4)]
    assert went == [["old"], ["new"], ["far"], None]
    assert shelf.promise("urgent", 1, -1, 100.0) == ["same"]


def test_what_is_held_stays_until_it_is_not() -> None:
    """Even if nothing else can go."""
    needs = {"a": Need(None, True)}
    shelf = shelf_of(needs, 1, "a")
    assert shelf.promise("k", 1, -1, 100.0) is None
    needs["a"] = Need(None, False)
    shelf.need_changed("a")
    assert shelf.promise("k", 1, -1, 100.0) == ["a"]


def test_what_somebody_waited_for_stays_a_moment() -> None:
    """Long enough to be opened; a clock that was put back makes it no longer than that."""
    for later_s, went in ((100.5, None), (101.5, ["a"]), (50.0, ["a"])):
        shelf = shelf_of({}, 1, "a")
        shelf.used("a", 100.0, just_now=True)
        assert shelf.promise("k", 1, -1, later_s) == went


def test_the_moment_ends_when_the_file_is_open() -> None:
    """A fast reader must not fill a small cache with what it has read already."""
    shelf = shelf_of({}, 1, "a")
    shelf.used("a", 100.0, just_now=True)
    shelf.opened("a")
    assert shelf.promise("k", 1, -1, 100.1) == ["a"]


def test_the_moment_ends_with_the_file() -> None:
    """One that came again has its own."""
    shelf = shelf_of({}, 1, "a")
    shelf.used("a", 100.0, just_now=True)
    shelf.put("a", Lying(1, 100.0, may_go=True))
    assert shelf.promise("k", 1, -1, 100.5) == ["a"]


def test_a_file_used_in_the_future_goes_last_but_goes() -> None:
    """A clock that was wrong when a file was written must not keep it for ever."""
    shelf = shelf_of({}, 2, "a")
    shelf.put("future", Lying(1, 1e12, may_go=True))
    assert shelf.promise("k", 2, -1, 100.0) == ["a", "future"]


def test_a_source_never_goes() -> None:
    """Whatever is needed; it counts all the same."""
    shelf = shelf_of({}, 1)
    shelf.put("source", Lying(1, 0.0, may_go=False))
    assert shelf.promise("k", 1, -1, 100.0) is None
    assert (shelf.n_bytes, shelf.n_fixed_bytes) == (1, 1)


def test_what_goes_takes_its_room_until_it_has_gone() -> None:
    """A second newcomer may not come into room that is still taken on disk."""
    shelf = shelf_of({}, 10)
    shelf.put("large", Lying(10, 0.0, may_go=True))
    assert shelf.promise("small", 2, 3, 0.0) == ["large"]
    assert shelf.promise("second", 8, 4, 0.0) is None
    shelf.gone("small")
    assert shelf.promise("second", 8, 4, 0.0) == []
    assert shelf.n_bytes == 10


def test_a_refusal_changes_nothing() -> None:
    """What could have gone is still there for one who needs less."""
    shelf = shelf_of({}, 3, "a", "b")
    shelf.put("source", Lying(1, 0.0, may_go=False))
    assert shelf.promise("k", 3, -1, 100.0) is None
    assert shelf.n_bytes == 3
    assert shelf.promise("k", 2, -1, 100.0) == ["a", "b"]


def test_a_cache_above_its_limit_shrinks() -> None:
    """By what no list has, then by what is needed last; held files may keep it above."""
    needs = {"a": Need(0, True), "b": Need(1, False), "c": Need(2, False)}
    shelf = shelf_of(needs, 1, "a", "b", "c", "d")
    assert shelf.shrink("excess", 100.0) == ["d", "c", "b"]
    assert shelf.shrink("excess", 100.0) == []
    shelf.gone("excess")
    assert shelf.n_bytes == 1


def test_files_of_a_folder_that_could_not_be_read_are_still_there() -> None:
    """Else a hiccup of a network disk would let the cache grow above its limit."""
    shelf = shelf_of({}, 10, "/c/d/a", "/c/e/b")
    shelf.look_begins()
    shelf.look_ends({}, ["/c/d"])
    assert [path in shelf for path in ("/c/d/a", "/c/e/b")] == [True, False]


def test_what_changes_during_a_look_is_not_the_looks_to_tell() -> None:
    """A file placed or deleted after the look began is as it was said since."""
    shelf = shelf_of({}, 10, "goes", "stays")
    shelf.look_begins()
    shelf.remove("goes")
    shelf.put("comes", Lying(1, 0.0, may_go=True))
    shelf.look_ends({path: Lying(1, 0.0, may_go=True) for path in ("goes", "stays", "new")})
    assert [path in shelf for path in ("goes", "stays", "comes", "new")] == [False, True, True, True]
