"""What goes when a cache is full."""

from __future__ import annotations

from streaming.cache.shelf import Lying, Need, Shelf

MIB = 1 << 20


def _shelf(needs: dict[str, Need], limit_bytes: int) -> Shelf:
    shelf = Shelf(lambda path: needs.get(path, Need(None, False)))
    shelf.limit_bytes = limit_bytes
    return shelf


def test_what_is_needed_last_goes_first_however_often_it_is_named() -> None:
    """Readers renew their lists all the time, with what is there: that alone keeps nothing."""
    needs = {path: Need(place, False) for place, path in enumerate("abc")}
    shelf = _shelf(needs, 3 * MIB)
    for path in "abc":
        shelf.put(path, Lying(MIB, 0.0, may_go=True))
        shelf.used(path, 100.0)
    assert shelf.promise("new", MIB, 1, 100.0) == ["c"]


def test_what_somebody_waited_for_stays_until_it_can_be_opened() -> None:
    """For a moment; then it goes like the rest."""
    needs = {path: Need(place, False) for place, path in enumerate("abc")}
    shelf = _shelf(needs, 3 * MIB)
    for path in "abc":
        shelf.put(path, Lying(MIB, 0.0, may_go=True))
    shelf.came("c", 100.0)
    assert shelf.promise("new", MIB, 0, 100.5) == ["b"]
    shelf.settle("new")
    shelf.put("b", Lying(MIB, 100.5, may_go=True))
    assert shelf.promise("new", MIB, 0, 102.0) == ["c"]


def test_what_is_held_and_what_cannot_come_again_stays() -> None:
    """Whatever is needed for it: then there is no room."""
    needs = {"a": Need(9, True), "b": Need(None, False)}
    shelf = _shelf(needs, 2 * MIB)
    shelf.put("a", Lying(MIB, 0.0, may_go=True))
    shelf.put("b", Lying(MIB, 0.0, may_go=False))
    assert shelf.promise("new", MIB, -1, 100.0) is None
    needs["a"] = Need(9, False)
    assert shelf.promise("new", MIB, -1, 100.0) == ["a"]
