"""Laws of the shelf over random histories, against the plainest statement of its rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.cache.ledger import CacheLedger, Lying, Need

PATHS = st.sampled_from([f"/c/{name}" for name in "abcde"])
KEYS = st.sampled_from(["k0", "k1"])
SIZES = st.integers(0, 3)
PLACES = st.integers(-1, 2)
TIMES = st.sampled_from([-100.0, -0.5, 0.4, 0.7, 2.0])
NEEDS = st.builds(Need, st.none() | st.integers(0, 2), st.sampled_from([False, False, False, True]))
LYING = st.builds(Lying, SIZES, st.sampled_from([-5.0, 0.0, 0.5, 5.0]), st.sampled_from([True, True, True, False]))

EVENTS = st.one_of(
    st.tuples(st.just("put"), PATHS, LYING),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("used"), PATHS, st.booleans()),
    st.tuples(st.just("opened"), PATHS),
    st.tuples(st.just("need"), PATHS, NEEDS),
    st.tuples(st.sampled_from(["promise", "promise", "free"]), KEYS, SIZES, PLACES),
    st.tuples(st.sampled_from(["gone", "settle", "shrink"]), KEYS),
    st.tuples(st.just("limit"), st.none() | st.integers(0, 9)),
    st.tuples(st.just("look"), st.dictionaries(PATHS, LYING)),
    st.tuples(st.just("found"), st.sampled_from([(), ("/c",)])),
    st.tuples(st.just("pass"), TIMES),
)
START = [("limit", 7), *(("put", f"/c/{name}", Lying(2, float(i), may_go=True)) for i, name in enumerate("abc"))]
HISTORIES = st.lists(EVENTS, max_size=30)


@dataclass
class Plain:
    """What lies there, looked through from one end to the other whenever something is asked."""

    now_s: float = 0.0
    limit: int | None = None
    files: dict[str, Lying] = field(default_factory=dict)
    needs: dict[str, Need] = field(default_factory=dict)
    just_used_s: dict[str, float] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    leaving: dict[str, dict[str, int]] = field(default_factory=dict)  # key → files that have not gone yet
    looked: dict[str, Lying] | None = None
    touched: set[str] = field(default_factory=set)  # since the look began

    def need(self, path: str) -> Need:
        return self.needs.get(path, Need(None, False))

    def taken(self, key: str) -> int:
        return max(self.promised.get(key, 0), sum(self.leaving.get(key, {}).values()))

    def n_bytes(self) -> int:
        return sum(lying.n_bytes for lying in self.files.values()) + sum(
            map(self.taken, {*self.promised, *self.leaving})
        )

    def put(self, path: str, lying: Lying) -> None:
        self.remove(path)
        self.files[path] = lying

    def remove(self, path: str) -> None:
        self.files.pop(path, None)
        self.just_used_s.pop(path, None)
        self.touched.add(path)

    def is_just_used(self, path: str) -> bool:
        return path in self.just_used_s and 0 <= self.now_s - self.just_used_s[path] < 1.0

    def evicted(self, n_bytes: int, place: int, *, partly: bool) -> list[str] | None:
        """What goes, by the rules as they are written."""
        for path in [path for path in self.just_used_s if not self.is_just_used(path)]:
            del self.just_used_s[path]  # a clock that goes back later does not bring the moment back
        may_go = [
            path
            for path, lying in self.files.items()
            if lying.may_go and not self.need(path).is_held and path not in self.just_used_s
        ]
        unneeded = sorted(
            (path for path in may_go if self.need(path).place is None), key=lambda p: (self.files[p].last_use_s, p)
        )
        needed_later = sorted(
            (-place_there, path) for path in may_go if (place_there := self.need(path).place) is not None
        )
        leaving: list[str] = []
        for path in [*unneeded, *(path for negative, path in needed_later if -negative > place)]:
            if sum(self.files[gone].n_bytes for gone in leaving) >= n_bytes:
                break
            leaving.append(path)
        if sum(self.files[gone].n_bytes for gone in leaving) < n_bytes and not partly:
            return None
        return leaving if n_bytes > 0 else []

    def leave(self, key: str, n_bytes: int, paths: list[str]) -> None:
        self.promised[key] = n_bytes
        self.leaving[key] = {path: self.files[path].n_bytes for path in paths}
        for path in paths:
            self.remove(path)


def watched(history: list[tuple[object, ...]]) -> tuple[CacheLedger, Plain]:
    """The shelf and the plain rules after the same history, compared at every step."""
    plain = Plain()
    shelf = CacheLedger(plain.need)
    for event in (*START, *history):
        excess = max(0, plain.n_bytes() - plain.limit) if plain.limit is not None else 0
        happen(shelf, plain, event)
        assert shelf.n_bytes == plain.n_bytes()
        assert shelf.n_fixed_bytes == sum(lying.n_bytes for lying in plain.files.values() if not lying.may_go)
        assert {path for path in plain.files if path in shelf} == set(plain.files)
        if event[0] in ("promise", "free", "shrink", "settle", "gone") and plain.limit is not None:
            assert shelf.n_bytes <= plain.limit + excess
    return shelf, plain


def happen(shelf: CacheLedger, plain: Plain, event: tuple[object, ...]) -> None:
    match event:
        case ("put", str(path), Lying() as lying):
            shelf.put(path, lying)
            plain.put(path, lying)
        case ("remove", str(path)):
            shelf.remove(path)
            plain.remove(path)
        case ("used", str(path), bool(just_now)):
            shelf.used(path, plain.now_s, just_now=just_now)
            if path in plain.files:
                plain.files[path] = replace(plain.files[path], last_use_s=plain.now_s)
                if just_now:
                    plain.just_used_s.pop(path, None)
                    plain.just_used_s[path] = plain.now_s
        case ("opened", str(path)):
            shelf.opened(path)
            plain.just_used_s.pop(path, None)
        case ("need", str(path), Need() as need):
            plain.needs[path] = need
            shelf.need_changed(path)
        case ("limit", limit):
            assert limit is None or isinstance(limit, int)
            shelf.limit_bytes = plain.limit = limit
        case ("pass", float(seconds)):
            plain.now_s += seconds
        case ("settle", str(key)):
            shelf.settle(key)
            plain.promised.pop(key, None)
            plain.touched |= set(plain.leaving.pop(key, {}))
        case ("gone", str(key)):
            shelf.gone(key)
            plain.touched |= set(plain.leaving.pop(key, {}))
        case ("look", dict() as found):
            shelf.look_begins()
            plain.looked, plain.touched = found, set()
        case ("found", tuple() as unseen) if plain.looked is not None:
            end_look(shelf, plain, unseen)
        case _:
            make_room(shelf, plain, event)


def end_look(shelf: CacheLedger, plain: Plain, unseen: tuple[str, ...]) -> None:
    """What was found counts, but for what changed meanwhile or goes just now."""
    assert plain.looked is not None
    shelf.look_ends(plain.looked, unseen)
    changed = plain.touched | {path for paths in plain.leaving.values() for path in paths}
    for path in {*plain.files, *plain.looked} - changed:
        found, known = plain.looked.get(path), plain.files.get(path)
        if found is None and not unseen:
            plain.remove(path)
        elif found is not None and (known is None or (known.n_bytes, known.may_go) != (found.n_bytes, found.may_go)):
            plain.put(path, found)
    plain.looked = None


def make_room(shelf: CacheLedger, plain: Plain, event: tuple[object, ...]) -> None:
    """Who must go, exactly; what is refused changes nothing."""
    match event:
        case ("promise", str(key), int(n_bytes), int(place)):
            n_over = 0
            if plain.limit is not None:
                n_over = plain.n_bytes() - plain.taken(key) + n_bytes - plain.limit
            expected = plain.evicted(n_over, place, partly=False)
            assert shelf.promise(key, n_bytes, place, plain.now_s) == expected
            if expected is not None:
                let_go(plain, key)
                plain.leave(key, n_bytes, expected)
        case ("free", str(key), int(n_bytes), int(place)):
            expected = plain.evicted(n_bytes, place, partly=True)
            assert expected is not None
            assert shelf.free(key, n_bytes, place, plain.now_s) == expected
            let_go(plain, key)
            plain.leave(key, 0, expected)
        case ("shrink", str(key)):
            if plain.limit is None or plain.n_bytes() <= plain.limit:
                assert shelf.shrink(key, plain.now_s) == []
                return
            staying = sum(lying.n_bytes for lying in plain.files.values()) + sum(plain.promised.values())
            expected = plain.evicted(staying - plain.limit, -1, partly=True)
            assert expected is not None
            assert shelf.shrink(key, plain.now_s) == expected
            let_go(plain, key)
            plain.leave(key, 0, expected)


def let_go(plain: Plain, key: str) -> None:
    plain.promised.pop(key, None)
    plain.touched |= set(plain.leaving.pop(key, {}))


@settings(max_examples=500, deadline=None)
@given(HISTORIES)
def test_what_goes_is_what_the_rules_say(history: list[tuple[object, ...]]) -> None:
    """The same files in the same order; no promise lifts what is taken above the limit; a refusal changes nothing."""
    watched(history)


@settings(max_examples=200, deadline=None)
@given(HISTORIES)
def test_nothing_is_kept_of_what_has_gone(history: list[tuple[object, ...]]) -> None:
    """When all promises are settled and all files have gone, the shelf is as good as new."""
    shelf, plain = watched(history)
    for key in ("k0", "k1"):
        shelf.settle(key)
    shelf.look_begins()
    shelf.look_ends({})
    assert shelf.n_bytes == shelf.n_fixed_bytes == 0
    shelf.limit_bytes = 0
    plain.needs.clear()
    shelf.put("/c/last", Lying(1, 0.0, may_go=True))
    assert shelf.promise("k", 0, 0, plain.now_s) == ["/c/last"]


def test_a_full_cache_costs_no_look_at_all_its_files() -> None:
    """Of 10,000 files, each round asks for the needs of those that come or change, granted or refused."""
    n_asked = 0
    needs: dict[str, Need] = {}

    def need_of(path: str) -> Need:
        nonlocal n_asked
        n_asked += 1
        return needs.get(path, Need(None, False))

    shelf = CacheLedger(need_of)
    shelf.limit_bytes = 10_000
    for i in range(10_000):
        needs[f"/c/{i}"] = Need(i, False)
        shelf.put(f"/c/{i}", Lying(1, 0.0, may_go=True))
    n_asked = 0
    for i in range(1_000):
        assert shelf.promise("refused", 1, 20_000, 0.0) is None
        assert shelf.promise(i, 1, 50, 0.0) == [f"/c/{9_999 - i}"]
        shelf.gone(i)
        shelf.settle(i)
        needs[f"/d/{i}"] = Need(50, False)
        shelf.put(f"/d/{i}", Lying(1, 0.0, may_go=True))
        shelf.need_changed("/c/7")
    assert n_asked == 2_000
