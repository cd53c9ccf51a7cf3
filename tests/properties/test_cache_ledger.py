"""Laws of the cache ledger over random histories, against the plainest statement of its rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.cache.ledger import CachedFile, CacheLedger, NextUse

PATHS = st.sampled_from([f"/c/{name}" for name in "abcde"])
KEYS = st.sampled_from(["k0", "k1"])
SIZES = st.integers(0, 3)
PLACES = st.integers(-1, 2)
TIMES = st.sampled_from([-100.0, -0.5, 0.4, 0.7, 2.0])
NEXT_USES = st.builds(NextUse, st.none() | st.integers(0, 2), st.sampled_from([False, False, False, True]))
FILES = st.builds(CachedFile, SIZES, st.sampled_from([-5.0, 0.0, 0.5, 5.0]), st.sampled_from([True, True, True, False]))

EVENTS = st.one_of(
    st.tuples(st.just("put"), PATHS, FILES),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("used"), PATHS, st.booleans()),
    st.tuples(st.just("opened"), PATHS),
    st.tuples(st.just("next use"), PATHS, NEXT_USES),
    st.tuples(st.sampled_from(["reserve", "reserve", "evict"]), KEYS, SIZES, PLACES),
    st.tuples(st.sampled_from(["evicted", "release", "evict excess"]), KEYS),
    st.tuples(st.just("limit"), st.none() | st.integers(0, 9)),
    st.tuples(st.just("begin scan"), st.dictionaries(PATHS, FILES)),
    st.tuples(st.just("end scan"), st.sampled_from([(), ("/c",)])),
    st.tuples(st.just("pass"), TIMES),
)
START = [
    ("limit", 7),
    *(("put", f"/c/{name}", CachedFile(2, float(i), is_evictable=True)) for i, name in enumerate("abc")),
]
HISTORIES = st.lists(EVENTS, max_size=30)


@dataclass
class PlainLedger:
    """The rules as they are written: every question is answered by a pass over all files."""

    now_s: float = 0.0
    limit: int | None = None
    files: dict[str, CachedFile] = field(default_factory=dict)
    next_uses: dict[str, NextUse] = field(default_factory=dict)
    awaited_s: dict[str, float] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    victims: dict[str, dict[str, int]] = field(default_factory=dict)  # key → files not deleted yet, and their bytes
    scanned: dict[str, CachedFile] | None = None
    touched: set[str] = field(default_factory=set)  # since the scan began

    def next_use(self, path: str) -> NextUse:
        return self.next_uses.get(path, NextUse(None, False))

    def taken(self, key: str) -> int:
        return max(self.reserved.get(key, 0), sum(self.victims.get(key, {}).values()))

    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files.values()) + sum(map(self.taken, {*self.reserved, *self.victims}))

    def put(self, path: str, file: CachedFile) -> None:
        self.remove(path)
        self.files[path] = file

    def remove(self, path: str) -> None:
        self.files.pop(path, None)
        self.awaited_s.pop(path, None)
        self.touched.add(path)

    def is_in_grace(self, path: str) -> bool:
        return path in self.awaited_s and 0 <= self.now_s - self.awaited_s[path] < 1.0

    def victims_for(self, n_bytes: int, place: int, *, partly: bool) -> list[str] | None:
        """The files to evict; None if they are too few and not `partly`."""
        for path in [path for path in self.awaited_s if not self.is_in_grace(path)]:
            del self.awaited_s[path]  # a clock that goes back later does not bring the grace period back
        candidates = [
            path
            for path, file in self.files.items()
            if file.is_evictable and not self.next_use(path).is_pinned and path not in self.awaited_s
        ]
        unannounced = sorted(
            (path for path in candidates if self.next_use(path).place is None),
            key=lambda p: (self.files[p].last_use_s, p),
        )
        announced = sorted(
            (-place_there, path) for path in candidates if (place_there := self.next_use(path).place) is not None
        )
        victims: list[str] = []
        for path in [*unannounced, *(path for negative, path in announced if -negative > place)]:
            if sum(self.files[gone].n_bytes for gone in victims) >= n_bytes:
                break
            victims.append(path)
        if sum(self.files[gone].n_bytes for gone in victims) < n_bytes and not partly:
            return None
        return victims if n_bytes > 0 else []

    def strike(self, key: str, n_bytes: int, paths: list[str]) -> None:
        self.reserved[key] = n_bytes
        self.victims[key] = {path: self.files[path].n_bytes for path in paths}
        for path in paths:
            self.remove(path)


def compared(history: list[tuple[object, ...]]) -> tuple[CacheLedger, PlainLedger]:
    """The ledger and the plain one after the same history, compared after every event."""
    plain = PlainLedger()
    ledger = CacheLedger(plain.next_use)
    for event in (*START, *history):
        excess = max(0, plain.n_bytes() - plain.limit) if plain.limit is not None else 0
        happen(ledger, plain, event)
        assert ledger.n_bytes == plain.n_bytes()
        assert ledger.n_unevictable_bytes == sum(file.n_bytes for file in plain.files.values() if not file.is_evictable)
        assert {path for path in plain.files if path in ledger} == set(plain.files)
        if event[0] in ("reserve", "evict", "evict excess", "release", "evicted") and plain.limit is not None:
            assert ledger.n_bytes <= plain.limit + excess
    return ledger, plain


def happen(ledger: CacheLedger, plain: PlainLedger, event: tuple[object, ...]) -> None:
    match event:
        case ("put", str(path), CachedFile() as file):
            ledger.put(path, file)
            plain.put(path, file)
        case ("remove", str(path)):
            ledger.remove(path)
            plain.remove(path)
        case ("used", str(path), bool(was_awaited)):
            ledger.used(path, plain.now_s, was_awaited=was_awaited)
            if path in plain.files:
                plain.files[path] = replace(plain.files[path], last_use_s=plain.now_s)
                if was_awaited:
                    plain.awaited_s.pop(path, None)
                    plain.awaited_s[path] = plain.now_s
        case ("opened", str(path)):
            ledger.opened(path)
            plain.awaited_s.pop(path, None)
        case ("next use", str(path), NextUse() as next_use):
            plain.next_uses[path] = next_use
            ledger.next_use_changed(path)
        case ("limit", limit):
            assert limit is None or isinstance(limit, int)
            ledger.limit_bytes = plain.limit = limit
        case ("pass", float(seconds)):
            plain.now_s += seconds
        case ("release", str(key)):
            ledger.release(key)
            plain.reserved.pop(key, None)
            plain.touched |= set(plain.victims.pop(key, {}))
        case ("evicted", str(key)):
            ledger.evicted(key)
            plain.touched |= set(plain.victims.pop(key, {}))
        case ("begin scan", dict() as found):
            ledger.begin_scan()
            plain.scanned, plain.touched = found, set()
        case ("end scan", tuple() as unreadable) if plain.scanned is not None:
            end_scan(ledger, plain, unreadable)
        case _:
            make_room(ledger, plain, event)


def end_scan(ledger: CacheLedger, plain: PlainLedger, unreadable: tuple[str, ...]) -> None:
    """The scan's word holds, except for files that changed meanwhile or are being deleted."""
    assert plain.scanned is not None
    ledger.end_scan(plain.scanned, unreadable)
    changed = plain.touched | {path for paths in plain.victims.values() for path in paths}
    for path in {*plain.files, *plain.scanned} - changed:
        found, known = plain.scanned.get(path), plain.files.get(path)
        if found is None and not unreadable:
            plain.remove(path)
        elif found is not None and (
            known is None or (known.n_bytes, known.is_evictable) != (found.n_bytes, found.is_evictable)
        ):
            plain.put(path, found)
    plain.scanned = None


def make_room(ledger: CacheLedger, plain: PlainLedger, event: tuple[object, ...]) -> None:
    """Exactly the same victims; a refusal changes nothing."""
    match event:
        case ("reserve", str(key), int(n_bytes), int(place)):
            n_over = 0
            if plain.limit is not None:
                n_over = plain.n_bytes() - plain.taken(key) + n_bytes - plain.limit
            expected = plain.victims_for(n_over, place, partly=False)
            assert ledger.reserve(key, n_bytes, place, plain.now_s) == expected
            if expected is not None:
                release(plain, key)
                plain.strike(key, n_bytes, expected)
        case ("evict", str(key), int(n_bytes), int(place)):
            expected = plain.victims_for(n_bytes, place, partly=True)
            assert expected is not None
            assert ledger.evict(key, n_bytes, place, plain.now_s) == expected
            release(plain, key)
            plain.strike(key, 0, expected)
        case ("evict excess", str(key)):
            if plain.limit is None or plain.n_bytes() <= plain.limit:
                assert ledger.evict_excess(key, plain.now_s) == []
                return
            staying = sum(file.n_bytes for file in plain.files.values()) + sum(plain.reserved.values())
            expected = plain.victims_for(staying - plain.limit, -1, partly=True)
            assert expected is not None
            assert ledger.evict_excess(key, plain.now_s) == expected
            release(plain, key)
            plain.strike(key, 0, expected)


def release(plain: PlainLedger, key: str) -> None:
    plain.reserved.pop(key, None)
    plain.touched |= set(plain.victims.pop(key, {}))


@settings(max_examples=500)
@given(HISTORIES)
def test_victims_are_those_of_the_rules(history: list[tuple[object, ...]]) -> None:
    """The same files in the same order; no reservation lifts the sum above the limit; a refusal changes nothing."""
    compared(history)


@settings(max_examples=200)
@given(HISTORIES)
def test_nothing_is_kept_of_what_has_ended(history: list[tuple[object, ...]]) -> None:
    """When all reservations are released and all files are gone, the ledger is as good as new."""
    ledger, plain = compared(history)
    for key in ("k0", "k1"):
        ledger.release(key)
    ledger.begin_scan()
    ledger.end_scan({})
    assert ledger.n_bytes == ledger.n_unevictable_bytes == 0
    ledger.limit_bytes = 0
    plain.next_uses.clear()
    ledger.put("/c/last", CachedFile(1, 0.0, is_evictable=True))
    assert ledger.reserve("k", 0, 0, plain.now_s) == ["/c/last"]


def test_a_full_cache_costs_no_pass_over_all_its_files() -> None:
    """With 10,000 files, each round asks for the next use of two: one that came, and one that changed."""
    n_asked = 0
    next_uses: dict[str, NextUse] = {}

    def next_use_of(path: str) -> NextUse:
        nonlocal n_asked
        n_asked += 1
        return next_uses.get(path, NextUse(None, False))

    ledger = CacheLedger(next_use_of)
    ledger.limit_bytes = 10_000
    for i in range(10_000):
        next_uses[f"/c/{i}"] = NextUse(i, False)
        ledger.put(f"/c/{i}", CachedFile(1, 0.0, is_evictable=True))
    n_asked = 0
    for i in range(1_000):
        assert ledger.reserve("refused", 1, 20_000, 0.0) is None
        assert ledger.reserve(i, 1, 50, 0.0) == [f"/c/{9_999 - i}"]
        ledger.evicted(i)
        ledger.release(i)
        next_uses[f"/d/{i}"] = NextUse(50, False)
        ledger.put(f"/d/{i}", CachedFile(1, 0.0, is_evictable=True))
        ledger.next_use_changed("/c/7")
    assert n_asked == 2_000
