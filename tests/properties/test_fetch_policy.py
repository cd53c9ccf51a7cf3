"""Laws of the fetch policy over random schedules, against the plainest statement of its rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.fetch.policy import FetchPolicy, Limits

LIMITS = Limits(n_transfers=3, grace_s=2.0, first_grace_s=10.0, rest_s=5.0)
NAMES = st.sampled_from([f"f{i}" for i in range(12)])
JOBS = st.sampled_from(["j0", "j1"])

EVENTS = st.one_of(
    st.tuples(st.just("open"), JOBS),
    st.tuples(st.just("close"), JOBS),
    st.tuples(st.just("announce"), JOBS, st.sampled_from(["r0", "r1"]), st.lists(NAMES, max_size=6)),
    st.tuples(st.just("want"), NAMES),
    st.tuples(st.just("release"), st.integers(0, 20)),
    st.tuples(st.just("finish"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 2.0, 5.0])),
)


@dataclass
class Plain:
    """The rules without any cleverness: everything is looked through, every time."""

    now_s: float = 0.0
    disk: set[str] = field(default_factory=set)
    moving: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)  # transfers since somebody began to wait
    queued: set[str] = field(default_factory=set)
    rests_until_s: dict[str, float] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    lists: dict[tuple[str, str], tuple[int, list[str]]] = field(default_factory=dict)
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
        wanted = name in self.waiting if number == 0 else number in {n for n, _ in self.lists.values()}
        return name in self.queued and wanted

    def may_begin(self) -> list[tuple[int, int, int, str]]:
        return sorted(entry for entry in self.entries if self.means_something(entry))

    def forget(self) -> None:
        """A file that nobody asks for is not queued any more."""
        listed = {name for _, names in self.lists.values() for name in names}
        self.queued &= listed | set(self.waiting)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_what_begins_is_what_the_rules_say(events: list[tuple[object, ...]]) -> None:
    """Same files in the same order as the plain rules give; never too many, none twice; in the end none is kept."""
    policy, plain = FetchPolicy[str](LIMITS, 0.0), Plain()
    for event in events:
        happen(policy, plain, event)
        begun = policy.take().begun
        for name in begun:
            entry = plain.may_begin()[0]
            assert entry[3] == name
            plain.entries.remove(entry)
            plain.queued.discard(name)
            assert name not in plain.moving
            plain.moving.add(name)
        assert len(plain.moving) == policy.n_moving <= LIMITS.n_transfers
        assert policy.n_moving == LIMITS.n_transfers or not plain.may_begin()
    finish_all(policy, plain)


def happen(policy: FetchPolicy[str], plain: Plain, event: tuple[object, ...]) -> None:
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
        case ("announce", str(job), str(reader), list(names)) if plain.connections[job]:
            announce(policy, plain, job, reader, [str(name) for name in names])
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
        case ("delete", str(name)):
            plain.disk.discard(name)
        case ("pass", float(seconds)):
            plain.now_s += seconds
            policy.passed(plain.now_s)
            for job in [job for job, ends_s in plain.ends_s.items() if ends_s <= plain.now_s]:
                del plain.ends_s[job]
                plain.lists = {key: value for key, value in plain.lists.items() if key[0] != job}
        case _:
            return
    plain.forget()


def announce(policy: FetchPolicy[str], plain: Plain, job: str, reader: str, names: list[str]) -> None:
    policy.announced(job, reader, [(name, name in plain.disk) for name in names], plain.now_s)
    number = plain.number()
    for place, name in enumerate(names):
        if name in plain.disk:
            plain.queued.discard(name)
        elif name not in plain.moving and not plain.rests(name):
            plain.queued.add(name)
            plain.entries.append((place, plain.number(), number, name))
    plain.lists.pop((job, reader), None)
    if names:
        plain.lists[job, reader] = (number, names)


def want(policy: FetchPolicy[str], plain: Plain, name: str) -> None:
    failure = policy.wanted(name, plain.now_s)
    resting = plain.rests(name) and name not in plain.moving and name not in plain.queued
    assert failure == (f"failed {name}" if resting else None)
    if failure is None:
        plain.waiting.append(name)
        plain.ended.discard(name)
        if name not in plain.moving:
            plain.queued.add(name)
            plain.entries.append((-1, plain.number(), 0, name))


def finish_all(policy: FetchPolicy[str], plain: Plain) -> None:
    """Whatever happened: every file that somebody waits for has its turn, and when all have gone nothing is kept."""
    turns = plain.ended | plain.moving
    begun = sorted(plain.moving)
    while begun:
        for name in begun:
            policy.finished(name, plain.now_s)
        begun = policy.take().begun
        turns.update(begun)
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
