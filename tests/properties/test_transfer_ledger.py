"""Laws of the ledger of transfers over random schedules, against the plainest statement of its rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.fetch.decide.transfers import FetchLimits, FileDemand, TransferLedger
from support.wanted import Wanted, absent

LIMITS = FetchLimits(n_transfers=3, grace_s=2.0, first_grace_s=10.0, rest_s=5.0, lease_s=8.0)
ALL_NAMES = [f"f{i}" for i in range(4)]
NAMES = st.sampled_from(ALL_NAMES)
JOBS = st.sampled_from(["j0", "j1"])
ACCOUNTS = st.sampled_from(["a", "b"])
WAITERS = st.sampled_from(["w0", "w1", "w2", "w3"])

EVENTS = st.one_of(
    st.tuples(st.just("open"), JOBS),
    st.tuples(st.just("close"), JOBS),
    st.tuples(
        st.just("announce"),
        JOBS,
        st.sampled_from(["r0", "r1"]),
        st.lists(st.tuples(NAMES, ACCOUNTS), max_size=6),
        st.lists(NAMES, max_size=2),
        st.sampled_from([0, 0, 3]),
    ),
    st.tuples(st.just("wait"), WAITERS, NAMES, ACCOUNTS),
    st.tuples(st.just("leave"), WAITERS),
    st.tuples(st.just("finish"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("abandon"), st.integers(0, 20)),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("appear"), NAMES),
    st.tuples(st.just("evict"), NAMES),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 2.0, 5.0])),
)

STEPS = st.lists(st.tuples(EVENTS, st.frozensets(NAMES, max_size=3)), max_size=60)  # and what has no room after it

Steps = list[tuple[tuple[object, ...], frozenset[str]]]


@dataclass
class _List:
    number: int
    files: list[Wanted]
    first: int
    held: list[str]

    def find(self, name: str) -> tuple[int, Wanted] | None:
        """The first place at which the list has a file, and for whom."""
        return next(((self.first + i, each) for i, each in enumerate(self.files) if each.key == name), None)


@dataclass
class Plain:
    """The rules without any cleverness: everything is looked through, every time."""

    now_s: float = 0.0
    disk: set[str] = field(default_factory=set)
    moving: dict[str, Wanted] = field(default_factory=dict)
    queued: set[str] = field(default_factory=set)
    failed: dict[tuple[str, str], float] = field(default_factory=dict)  # file and account → end of its rest
    waiting: dict[str, Wanted] = field(default_factory=dict)  # waiter → what
    asked_s: dict[str, float] = field(default_factory=dict)  # waiter → when last
    lists: dict[tuple[str, str], _List] = field(default_factory=dict)
    entries: list[tuple[int, int, int, str]] = field(default_factory=list)
    connections: dict[str, int] = field(default_factory=lambda: {"j0": 0, "j1": 0})
    ends_s: dict[str, float] = field(default_factory=dict)
    n_numbered: int = 0

    def number(self) -> int:
        self.n_numbered += 1
        return self.n_numbered

    def rests(self, name: str, account: str) -> bool:
        return self.failed.get((name, account), -1.0) > self.now_s

    def first_waiting(self, name: str) -> Wanted | None:
        found = (each for each in self.waiting.values() if each.key == name and (name, each.account) not in self.failed)
        return next(found, None)

    def listed(self, name: str) -> list[tuple[int, int, Wanted]]:
        """Place, number and account of the file in every list, the oldest list first."""
        oldest_first = sorted(self.lists.values(), key=lambda each: each.number)
        return [(found[0], each.number, found[1]) for each in oldest_first if (found := each.find(name)) is not None]

    def wanted_by(self, entry: tuple[int, int, int, str]) -> Wanted | None:
        _, _, number, name = entry
        if name not in self.queued:
            return None
        if number == 0:
            return self.first_waiting(name)
        of = next((wanted for _, n, wanted in self.listed(name) if n == number), None)
        return None if of is None or (name, of.account) in self.failed else of

    def may_begin(self) -> list[tuple[int, int, int, str]]:
        return sorted(entry for entry in self.entries if self.wanted_by(entry) is not None)

    def queue_again(self, name: str) -> None:
        """Everybody whose account has not failed has a turn again."""
        listed = [each for each in self.listed(name) if (name, each[2].account) not in self.failed]
        is_waited_for = self.first_waiting(name) is not None
        self.queued.discard(name)
        if is_waited_for or listed:
            self.queued.add(name)
        if is_waited_for:
            self.entries.append((-1, self.number(), 0, name))
        for place, number, _ in listed:
            self.entries.append((place, self.number(), number, name))

    def forget(self) -> None:
        """A file that nobody asks for is not queued any more, and failures that have rested are not kept."""
        known = {name for each in self.lists.values() for name in (*(of.key for of in each.files), *each.held)}
        known |= {wanted.key for wanted in self.waiting.values()}
        resting = {name for (name, _), until_s in self.failed.items() if until_s > self.now_s}
        self.queued &= known | resting
        gone = {name for name, _ in self.failed} - known - resting - self.moving.keys()
        self.failed = {key: until_s for key, until_s in self.failed.items() if key[0] not in gone}

    def demand(self, name: str) -> FileDemand:
        """Its first place in any list, and whether a reader has it open or somebody waits for it."""
        places = [place for place, _, _ in self.listed(name)]
        is_waited_for = any(wanted.key == name for wanted in self.waiting.values())
        is_held = is_waited_for or any(name in each.held for each in self.lists.values())
        return FileDemand(min(places, default=None), is_held)

    def taken(self, refused: frozenset[str]) -> tuple[list[Wanted], list[tuple[Wanted, list[str]]]]:
        """What begins, and who waits without room: in order, up to the first file of a list that has no room."""
        begun: list[Wanted] = []
        without_room: list[tuple[Wanted, list[str]]] = []
        while len(self.moving) < LIMITS.n_transfers and (entries := self.may_begin()):
            place, _, _, name = entry = entries[0]
            if name in refused and place >= 0:
                break
            wanted = self.wanted_by(entry)
            assert wanted is not None
            self.entries.remove(entry)
            if name in refused:
                waiters = [waiter for waiter, each in self.waiting.items() if each.key == name]
                for waiter in waiters:
                    self.leave(waiter)
                without_room.append((wanted, waiters))
                self.forget()
                continue
            self.queued.discard(name)
            self.moving[name] = wanted
            begun.append(wanted)
        return begun, without_room

    def leave(self, waiter: str) -> None:
        self.waiting.pop(waiter, None)
        self.asked_s.pop(waiter, None)


@settings(max_examples=500)
@given(STEPS)
def test_what_begins_is_what_the_rules_say(steps: Steps) -> None:
    """The same files, for the same accounts and in the same order; never too many, none twice; in the end none."""
    ledger, plain = TransferLedger[Wanted](LIMITS, 0.0), Plain()
    for event, refused in steps:
        happen(ledger, plain, event)
        places: dict[str, int] = {}
        before = plain.may_begin()
        taken = ledger.take(room_but_for(refused, places))
        assert (taken.begun, taken.without_room) == plain.taken(refused)
        assert len(plain.moving) == ledger.n_moving <= LIMITS.n_transfers
        for wanted in taken.begun:
            assert places[wanted.key] == min(place for place, _, _, asked in before if asked == wanted.key)
    finish_all(ledger, plain)


@settings(max_examples=300)
@given(STEPS)
def test_it_is_known_how_soon_a_file_is_needed(steps: Steps) -> None:
    """As the subscriptions say; a caller that asks what has changed misses nothing."""
    ledger, plain = TransferLedger[Wanted](LIMITS, 0.0), Plain()
    known: dict[object, FileDemand] = {}
    for event, refused in steps:
        happen(ledger, plain, event)
        ledger.take(room_but_for(refused))
        plain.taken(refused)
        known |= {key: ledger.demand_for(key) for key in ledger.changed()}
        for name in ALL_NAMES:
            assert ledger.demand_for(name) == plain.demand(name) == known.get(name, FileDemand(None, False))


@settings(max_examples=300)
@given(STEPS)
def test_a_transfer_goes_on_as_long_as_anybody_subscribes_to_it(steps: Steps) -> None:
    """However many slices the wait has, and whatever happens between two of them."""
    ledger, plain = TransferLedger[Wanted](LIMITS, 0.0), Plain()
    for event, refused in steps:
        happen(ledger, plain, event)
        ledger.take(room_but_for(refused))
        plain.taken(refused)
        for name in plain.moving:
            is_waited_for = any(wanted.key == name for wanted in plain.waiting.values())
            assert ledger.is_wanted(name) == (is_waited_for or bool(plain.listed(name)))


def room_but_for(refused: frozenset[str], places: dict[str, int] | None = None) -> Callable[[Wanted, int], bool]:
    """Room for all files but these; the places at which it is asked are noted in `places`."""

    def has_room(wanted: Wanted, place: int) -> bool:
        if places is not None:
            places[wanted.key] = place
        return wanted.key not in refused

    return has_room


def happen(ledger: TransferLedger[Wanted], plain: Plain, event: tuple[object, ...]) -> None:
    match event:
        case ("open", str(job)):
            ledger.opened(job)
            plain.connections[job] += 1
            plain.ends_s.pop(job, None)
        case ("close", str(job)) if plain.connections[job]:
            ledger.closed(job, plain.now_s)
            plain.connections[job] -= 1
            if not plain.connections[job]:
                plain.ends_s[job] = plain.now_s + LIMITS.grace_s
        case ("announce", str(job), str(reader), list(files), list(held), int(first)):
            announce(ledger, plain, (job, reader), _List(0, [Wanted(*each) for each in files], first, held))
        case ("wait", str(waiter), str(name), str(account)) if name not in plain.disk:
            wait(ledger, plain, waiter, Wanted(name, account))
        case ("leave", str(waiter)):
            ledger.unsubscribe(waiter)
            plain.leave(waiter)
        case ("finish", int(k), bool(good)) if plain.moving:
            finish(ledger, plain, sorted(plain.moving)[k % len(plain.moving)], good=good)
        case ("abandon", int(k)) if plain.moving:
            name = sorted(plain.moving)[k % len(plain.moving)]
            ledger.abandoned(name)
            del plain.moving[name]
            plain.queue_again(name)
        case ("delete", str(name)):
            plain.disk.discard(name)
        case ("appear", str(name)):
            plain.disk.add(name)
        case ("evict", str(name)) if name in plain.disk and name not in plain.moving:
            ledger.evicted(name)
            plain.disk.discard(name)
            has_failed = any(failed == name for failed, _ in plain.failed)
            if name not in plain.queued and not has_failed:
                plain.queue_again(name)
        case ("pass", float(seconds)):
            plain.now_s += seconds
            ledger.passed(plain.now_s)
            for job in [job for job, ends_s in plain.ends_s.items() if ends_s <= plain.now_s]:
                del plain.ends_s[job]
                plain.lists = {key: each for key, each in plain.lists.items() if key[0] != job}
            for waiter, asked_s in list(plain.asked_s.items()):
                if asked_s + LIMITS.lease_s <= plain.now_s:
                    plain.leave(waiter)
        case _:
            return
    plain.forget()


def announce(ledger: TransferLedger[Wanted], plain: Plain, key: tuple[str, str], announced: _List) -> None:
    files = [(wanted, wanted.key in plain.disk) for wanted in announced.files]
    ledger.announced(*key, files, plain.now_s, held=announced.held, first=announced.first)
    if not plain.connections[key[0]] and key[0] not in plain.ends_s:
        return
    announced.number = plain.number()
    for place, (name, account) in enumerate(announced.files, start=announced.first):
        if name in plain.moving:
            continue
        if name in plain.disk:
            plain.queued.discard(name)
            plain.failed = {each: until_s for each, until_s in plain.failed.items() if each[0] != name}
        elif not plain.rests(name, account):
            plain.queued.add(name)
            plain.failed.pop((name, account), None)
            plain.entries.append((place, plain.number(), announced.number, name))
    plain.lists.pop(key, None)
    if announced.files or announced.held:
        plain.lists[key] = announced


def wait(ledger: TransferLedger[Wanted], plain: Plain, waiter: str, wanted: Wanted) -> None:
    name, account = wanted
    failure = ledger.subscribe(waiter, wanted, plain.now_s)
    if plain.waiting.get(waiter) == wanted:
        assert failure is None
        plain.asked_s[waiter] = plain.now_s
        return
    plain.leave(waiter)
    plain.forget()
    assert failure == (f"{account} failed {name}" if plain.rests(name, account) else None)
    if failure is None:
        plain.waiting[waiter] = wanted
        plain.asked_s[waiter] = plain.now_s
        plain.failed.pop((name, account), None)
        if name not in plain.moving:
            plain.queued.add(name)
            plain.entries.append((-1, plain.number(), 0, name))


def finish(ledger: TransferLedger[Wanted], plain: Plain, name: str, *, good: bool) -> None:
    """A success answers every waiter, a failure those of the account for which the file moved."""
    account = plain.moving.pop(name).account
    answered = ledger.finished(name, plain.now_s, failure=None if good else f"{account} failed {name}")
    waiters = [waiter for waiter, each in plain.waiting.items() if each.key == name]
    if good:
        plain.disk.add(name)
        plain.failed = {key: until_s for key, until_s in plain.failed.items() if key[0] != name}
    else:
        waiters = [waiter for waiter in waiters if plain.waiting[waiter].account == account]
        plain.failed[name, account] = plain.now_s + LIMITS.rest_s
        plain.queue_again(name)
    assert answered == waiters
    for waiter in waiters:
        plain.leave(waiter)


def finish_all(ledger: TransferLedger[Wanted], plain: Plain) -> None:
    """Whatever happened: every waiter is answered if all goes well, and when all have gone nothing is kept."""
    begun = [*(plain.moving[name] for name in sorted(plain.moving)), *ledger.take().begun]
    while begun:
        for wanted in begun:
            for waiter in ledger.finished(wanted.key, plain.now_s):
                assert isinstance(waiter, str)
                plain.leave(waiter)
        begun = ledger.take().begun
    assert not plain.waiting
    for job, n in plain.connections.items():
        for _ in range(n):
            ledger.closed(job, plain.now_s)
    ledger.passed(plain.now_s + 100)
    assert ledger.n_known == 0
    assert ledger.n_moving == 0
    assert ledger.is_over(plain.now_s + 100)


SLICE_S = 1.0


@settings(max_examples=200)
@given(
    n_slices=st.integers(1, 60),
    late_s=st.floats(0.0, 5.0),
    events=st.lists(st.tuples(st.sampled_from(["announce", "finish", "wait", "pass"]), NAMES), max_size=30),
)
def test_a_file_larger_than_a_slice_comes_although_nobody_announced_it(
    n_slices: int, late_s: float, events: list[tuple[str, str]]
) -> None:
    """A side file, or a compressed shard by number: its waiter asks again after each slice, sometimes seconds late.

    Between two slices the machine does other things. The transfer is wanted all the while, and never begins anew.
    """
    ledger = TransferLedger[Wanted](LIMITS, 0.0)
    ledger.opened("job")
    assert ledger.subscribe("waiter", Wanted("large"), 0.0) is None
    assert [wanted.key for wanted in ledger.take().begun] == ["large"]
    now_s = 0.0
    for number in range(n_slices):
        now_s += SLICE_S
        for kind, name in events[number::n_slices]:
            if kind == "announce":
                ledger.announced("job", "reader", absent([name]), now_s)
            elif kind == "wait":
                ledger.subscribe("other", Wanted(name), now_s)
            elif kind == "pass":
                ledger.passed(now_s)
            for begun in ledger.take().begun:
                assert begun.key != "large"
                ledger.finished(begun.key, now_s)
            assert ledger.is_wanted("large")
        now_s += late_s
        ledger.passed(now_s)
        assert ledger.is_wanted("large")
        assert ledger.subscribe("waiter", Wanted("large"), now_s) is None
    assert ledger.finished("large", now_s) == ["waiter"]


@settings(max_examples=200)
@given(
    wants=st.lists(st.tuples(st.booleans(), ACCOUNTS), min_size=1, max_size=8),
    bad=st.frozensets(ACCOUNTS),
    rests=st.booleans(),
)
def test_a_failure_reaches_only_the_account_that_failed(
    wants: list[tuple[bool, str]], bad: frozenset[str], rests: bool
) -> None:
    """Waiters and lists of several accounts want one file: those whose account is good get it, the others the failure.

    Each account costs one transfer at most.
    """
    ledger = TransferLedger[Wanted](LIMITS, 0.0)
    ledger.opened("job")
    for number, (is_waiter, account) in enumerate(wants):
        if is_waiter:
            assert ledger.subscribe(number, Wanted("file", account), 0.0) is None
        else:
            ledger.announced("job", f"r{number}", absent(["file"], account), 0.0)
    answers: dict[object, str | None] = {}
    tried: list[str] = []
    while begun := ledger.take().begun:
        (wanted,) = begun
        tried.append(wanted.account)
        failure = f"refused {wanted.account}" if wanted.account in bad else None
        for waiter in ledger.finished("file", 0.0, failure=failure, rests=rests):
            answers[waiter] = failure
        if failure is None:
            break
    has_come = bool({account for _, account in wants} - bad)
    for number, (is_waiter, account) in enumerate(wants):
        if is_waiter and answers[number] is not None:
            assert account in bad
            assert answers[number] == f"refused {account}"
        elif is_waiter:
            assert has_come
    assert len(tried) == len(set(tried))
    assert (tried[-1] not in bad) == has_come
    if not has_come and rests:
        for account in {account for _, account in wants}:
            assert ledger.subscribe("next", Wanted("file", account), 1.0) == f"refused {account}"
