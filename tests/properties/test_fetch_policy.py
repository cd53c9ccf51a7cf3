"""Laws of the fetch policy over random schedules, against the plainest statement of its rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.fetch.decide.transfers import FetchLimits, FileDemand, TransferLedger

LIMITS = FetchLimits(n_transfers=3, grace_s=2.0, first_grace_s=10.0, rest_s=5.0)
ALL_NAMES = [f"f{i}" for i in range(5)]
NAMES = st.sampled_from(ALL_NAMES)
JOBS = st.sampled_from(["j0", "j1"])

EVENTS = st.one_of(
    st.tuples(st.just("open"), JOBS),
    st.tuples(st.just("close"), JOBS),
    st.tuples(
        st.just("announce"),
        JOBS,
        st.sampled_from(["r0", "r1"]),
        st.lists(NAMES, max_size=6),
        st.lists(NAMES, max_size=2),
        st.sampled_from([0, 0, 3]),
    ),
    st.tuples(st.just("want"), NAMES),
    st.tuples(st.just("release"), st.integers(0, 20)),
    st.tuples(st.just("finish"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("abandon"), st.integers(0, 20)),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("appear"), NAMES),
    st.tuples(st.just("evict"), NAMES),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 2.0, 5.0])),
)


STEPS = st.lists(st.tuples(EVENTS, st.frozensets(NAMES, max_size=3)), max_size=60)  # and what has no room after it


@dataclass
class _List:
    number: int
    names: list[str]
    first: int
    held: list[str]

    def place(self, name: str) -> int:
        return self.first + self.names.index(name)


@dataclass
class Plain:
    """The rules without any cleverness: everything is looked through, every time."""

    now_s: float = 0.0
    disk: set[str] = field(default_factory=set)
    moving: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)  # transfers, and refusals of room, since somebody began to wait
    queued: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)  # and not asked for since
    rests_until_s: dict[str, float] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    lists: dict[tuple[str, str], _List] = field(default_factory=dict)
    entries: list[tuple[int, int, int, str]] = field(default_factory=list)
    connections: dict[str, int] = field(default_factory=lambda: {"j0": 0, "j1": 0})
    ends_s: dict[str, float] = field(default_factory=dict)
    n_numbered: int = 0

    def number(self) -> int:
        self.n_numbered += 1
        return self.n_numbered

    def rests(self, name: str) -> bool:
        return self.rests_until_s.get(name, -1.0) > self.now_s

    def means_something(self, entry: tuple[int, int, int, str]) -> bool:
        _, _, number, name = entry
        wanted = name in self.waiting if number == 0 else number in {each.number for each in self.lists.values()}
        return name in self.queued and wanted

    def may_begin(self) -> list[tuple[int, int, int, str]]:
        return sorted(entry for entry in self.entries if self.means_something(entry))

    def forget(self) -> None:
        """A file that nobody asks for is not queued any more."""
        known = {name for each in self.lists.values() for name in (*each.names, *each.held)}
        self.queued &= known | set(self.waiting)

    def standing(self, name: str) -> FileDemand:
        """Its first place in any list, and whether somebody has it open or waits for it."""
        places = [each.place(name) for each in self.lists.values() if name in each.names]
        is_held = name in self.waiting or any(name in each.held for each in self.lists.values())
        return FileDemand(min(places, default=None), is_held)

    def taken(self, refused: frozenset[str]) -> tuple[list[str], list[str]]:
        """What begins and what is waited for without room: in order, up to the first in a list that has no room."""
        begun: list[str] = []
        without_room: list[str] = []
        while len(self.moving) < LIMITS.n_transfers and (entries := self.may_begin()):
            place, _, _, name = entry = entries[0]
            if name in refused and place >= 0:
                break
            self.entries.remove(entry)
            if name in refused:
                without_room.append(name)
                self.ended.add(name)
                continue
            self.queued.discard(name)
            self.moving.add(name)
            begun.append(name)
        return begun, without_room


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_what_begins_is_what_the_rules_say(steps: list[tuple[tuple[object, ...], frozenset[str]]]) -> None:
    """Same files in the same order as the plain rules give; never too many, none twice; in the end none is kept."""
    policy, plain = TransferLedger[str](LIMITS, 0.0), Plain()
    for event, refused in steps:
        happen(policy, plain, event)
        places: dict[str, int] = {}
        before = plain.may_begin()
        taken = policy.take(room_but_for(refused, places))
        assert (taken.begun, taken.without_room) == plain.taken(refused)
        assert len(plain.moving) == policy.n_moving <= LIMITS.n_transfers
        for name in taken.begun:
            assert places[name] == min(place for place, _, _, asked in before if asked == name)
    finish_all(policy, plain)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_it_is_known_how_soon_a_file_is_needed(steps: list[tuple[tuple[object, ...], frozenset[str]]]) -> None:
    """As the lists say; and who asks what has changed misses nothing."""
    policy, plain = TransferLedger[str](LIMITS, 0.0), Plain()
    known: dict[str, FileDemand] = {}
    for event, refused in steps:
        happen(policy, plain, event)
        policy.take(room_but_for(refused))
        plain.taken(refused)
        known |= {name: policy.standing(name) for name in policy.changed()}
        for name in ALL_NAMES:
            assert policy.standing(name) == plain.standing(name) == known.get(name, FileDemand(None, False))


def room_but_for(refused: frozenset[str], places: dict[str, int] | None = None) -> Callable[[str, int], bool]:
    """Room for all files but these; the places at which it is asked are noted in `places`."""

    def has_room(name: str, place: int) -> bool:
        if places is not None:
            places[name] = place
        return name not in refused

    return has_room


def happen(policy: TransferLedger[str], plain: Plain, event: tuple[object, ...]) -> None:
    match event:
        case ("open", str(job)):
            policy.opened(job)
            plain.connections[job] += 1
            plain.ends_s.pop(job, None)
        case ("close", str(job)) if plain.connections[job]:
            policy.closed(job, plain.now_s)
            plain.connections[job] -= 1
            if not plain.connections[job]:
                plain.ends_s[job] = plain.now_s + LIMITS.grace_s
        case ("announce", str(job), str(reader), list(names), list(held), int(first)):
            announce(policy, plain, (job, reader), _List(0, names, first, held))
        case ("want", str(name)) if name not in plain.disk:
            want(policy, plain, name)
        case ("release", int(k)) if plain.waiting:
            name = plain.waiting.pop(k % len(plain.waiting))
            policy.released(name)
        case ("finish", int(k), bool(good)) if plain.moving:
            name = sorted(plain.moving)[k % len(plain.moving)]
            plain.moving.discard(name)
            plain.ended.add(name)
            policy.finished(name, plain.now_s, failure=None if good else f"failed {name}")
            if good:
                plain.disk.add(name)
            else:
                plain.rests_until_s[name] = plain.now_s + LIMITS.rest_s
                plain.failed.add(name)
        case ("abandon", int(k)) if plain.moving:
            abandon(policy, plain, sorted(plain.moving)[k % len(plain.moving)])
        case ("delete", str(name)):
            plain.disk.discard(name)
        case ("appear", str(name)):
            plain.disk.add(name)
        case ("evict", str(name)) if name in plain.disk and name not in plain.moving:
            evict(policy, plain, name)
        case ("pass", float(seconds)):
            plain.now_s += seconds
            policy.passed(plain.now_s)
            for job in [job for job, ends_s in plain.ends_s.items() if ends_s <= plain.now_s]:
                del plain.ends_s[job]
                plain.lists = {key: each for key, each in plain.lists.items() if key[0] != job}
        case _:
            return
    plain.forget()


def announce(policy: TransferLedger[str], plain: Plain, key: tuple[str, str], told: _List) -> None:
    files = [(name, name in plain.disk) for name in told.names]
    policy.announced(*key, files, plain.now_s, held=told.held, first=told.first)
    if not plain.connections[key[0]] and key[0] not in plain.ends_s:
        return
    told.number = plain.number()
    for place, name in enumerate(told.names, start=told.first):
        if name in plain.moving:
            continue
        if name in plain.disk:
            plain.queued.discard(name)
            plain.failed.discard(name)
        elif not plain.rests(name):
            plain.queued.add(name)
            plain.failed.discard(name)
            plain.entries.append((place, plain.number(), told.number, name))
    plain.lists.pop(key, None)
    if told.names or told.held:
        plain.lists[key] = told


def abandon(policy: TransferLedger[str], plain: Plain, name: str) -> None:
    """A transfer was given up; who wants the file by now has it queued, in place of those who gave it up."""
    policy.abandoned(name, plain.now_s)
    plain.moving.discard(name)
    plain.ended.discard(name)
    plain.rests_until_s.pop(name, None)
    plain.queued.add(name)
    if name in plain.waiting:
        plain.entries.append((-1, plain.number(), 0, name))
    for each in sorted(plain.lists.values(), key=lambda each: each.number):
        if name in each.names:
            plain.entries.append((each.place(name), plain.number(), each.number, name))


def evict(policy: TransferLedger[str], plain: Plain, name: str) -> None:
    """Lists that have it get it again; one that has failed before is not tried again for that."""
    policy.evicted(name)
    plain.disk.discard(name)
    if name in plain.queued or name in plain.failed:
        return
    for each in sorted(plain.lists.values(), key=lambda each: each.number):
        if name in each.names:
            plain.queued.add(name)
            plain.entries.append((each.place(name), plain.number(), each.number, name))


def want(policy: TransferLedger[str], plain: Plain, name: str) -> None:
    failure = policy.wanted(name, plain.now_s)
    resting = plain.rests(name) and name not in plain.moving and name not in plain.queued
    assert failure == (f"failed {name}" if resting else None)
    if failure is None:
        plain.waiting.append(name)
        plain.ended.discard(name)
        plain.failed.discard(name)
        if name not in plain.moving:
            plain.queued.add(name)
            plain.entries.append((-1, plain.number(), 0, name))


def finish_all(policy: TransferLedger[str], plain: Plain) -> None:
    """Whatever happened: every file that somebody waits for has its turn, and when all have gone nothing is kept."""
    turns = plain.ended | plain.moving
    begun = [*sorted(plain.moving), *policy.take().begun]
    while begun:
        turns.update(begun)
        for name in begun:
            policy.finished(name, plain.now_s)
        begun = policy.take().begun
    assert set(plain.waiting) <= turns
    for name in plain.waiting:
        policy.released(name)
    for job, n in plain.connections.items():
        for _ in range(n):
            policy.closed(job, plain.now_s)
    policy.passed(plain.now_s + 100)
    assert policy.n_known == 0
    assert policy.n_moving == 0
    assert policy.is_over(plain.now_s + 100)
