"""Which file moves next, and for whom: pure decisions, O(log n) an event.

Times and presence on disk come in with the events; transfers to begin come out of `take`. The rules:

1. At most `n_transfers` files move at once, and no file twice at once.
2. Interest in a file is a subscription of (file, account, subscriber). A subscriber is a list that a reader announced
   or a waiter, which wants one file at a time. An account is as whom, and how patiently, the store is asked.
3. A waiter's subscription stands until the waiter is answered, wants another file or leaves, or `lease_s` after it
   asked last. A list lives until it is replaced, or until its job has had no connection for `grace_s`.
4. Files that somebody waits for go first, in the order of asking; then announced files, by their places in their lists,
   so that the first file of every reader comes before the second of any.
5. A file moves for the account of the subscription that made it begin, and goes on as long as anybody subscribes to it.
   A failure is that account's: its waiters get it, and it rests, so that a waiter of this account within `rest_s` gets
   it too. For subscribers of other accounts the file begins anew under their own.
6. Nothing is remembered of a file that has no subscription, is not held, does not move, and of which no failure rests.
7. A file begins to move when it has room. An announced file does not overtake one without room; a waiter of a file that
   can have no room is told, so that it can read the bytes without the file.
"""

from __future__ import annotations

import enum
import heapq
import posixpath
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from streaming.fetch.wire.protocol import FileRequest, StreamConfig
from streaming.storage.url import Location

# --- what moves


@dataclass(frozen=True, slots=True)
class FileKey:
    """A file of the cache and its source: the same whoever asks for it, and how."""

    remote: Location
    local: str
    name: str

    @property
    def path(self) -> str:
        """Where the file lies, or will."""
        return posixpath.join(self.local, self.name)

    @property
    def shown(self) -> str:
        """The source for messages, without secrets."""
        return f"{self.remote.shown}/{self.name}"


@dataclass(frozen=True, slots=True)
class Account:
    """As whom, and how patiently, a store is asked. A failure of one account says nothing of another."""

    options: str
    credentials_key: str
    n_attempts: int
    timeout_s: float

    def __repr__(self) -> str:
        return f"Account({self.credentials_key!r}, {self.n_attempts}, {self.timeout_s})"  # options may be secret


@dataclass(frozen=True, slots=True)
class Transfer:
    """A file to be brought into the cache, for an account. Equal if both are, whatever else the request says."""

    key: FileKey
    account: Account
    file: FileRequest = field(compare=False)
    config: StreamConfig = field(compare=False)

    @classmethod
    def of(cls, file: FileRequest, config: StreamConfig) -> Transfer:
        """The transfer that a client's request means."""
        account = Account(config.options, config.credentials_key, config.download_retry, config.download_timeout)
        return cls(FileKey(config.remote, config.local, file.name), account, file, config)

    @property
    def path(self) -> str:
        """Where the file lies, or will."""
        return self.key.path

    @property
    def shown(self) -> str:
        """The source for messages, without secrets."""
        return self.key.shown

    @property
    def disk_bytes(self) -> int:
        """Bytes that the file takes on disk at most, while it comes and afterwards; 0 if they are unknown."""
        kept = self.file.zip_bytes if self.config.keep_zip and self.file.zip_name is not None else 0
        return max(0, self.file.n_bytes) + max(0, kept)


# --- the ledger


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What this machine's fetcher may do."""

    n_transfers: int = 16
    grace_s: float = 2.0
    """From a job's last connection to the end of its lists; from the last of all to the fetcher's end."""
    first_grace_s: float = 10.0
    """For the first connection to come."""
    rest_s: float = 2.0
    """How long a failure stands."""
    lease_s: float = 10.0
    """How long a waiter stays subscribed that does not ask again."""


class FileState(enum.Enum):
    """The state of a file. Absent files that nobody wants are not kept."""

    QUEUED = "queued"
    MOVING = "moving"
    PRESENT = "present"
    FAILED = "failed"
    """For every account that subscribes to it."""


TRANSITIONS: Final = {
    FileState.QUEUED: {FileState.MOVING, FileState.PRESENT},  # present: seen on disk, placed there by somebody else
    FileState.MOVING: {FileState.PRESENT, FileState.FAILED, FileState.QUEUED},  # queued: given up, or for others
    FileState.PRESENT: {FileState.QUEUED},  # it was evicted, deleted or cut
    FileState.FAILED: {FileState.QUEUED, FileState.PRESENT},
}

URGENT: Final = -1
"""The place of a file that somebody waits for: before every place in a list."""
_NO_LIST: Final = 0


class _OfAccount(Protocol):
    """A file wanted by an account; `Transfer` in production."""

    @property
    def key(self) -> Hashable: ...

    @property
    def account(self) -> Hashable: ...


T = TypeVar("T", bound=_OfAccount)


@dataclass(frozen=True, slots=True)
class _Failure:
    error: object
    rests_until_s: float | None  # None: the next who asks has it tried again


@dataclass(slots=True)
class _TrackedFile(Generic[T]):
    """A file that is remembered."""

    state: FileState
    listed: dict[int, tuple[int, T]] = field(default_factory=dict)  # number of a list → place there, and for whom
    waiting: dict[Hashable, T] = field(default_factory=dict)  # waiter → for whom, in the order of asking
    n_holding: int = 0
    moving_for: T | None = None
    failures: dict[Hashable, _Failure] = field(default_factory=dict)  # by account, since it asked last

    def go_to(self, state: FileState) -> None:
        if state is not self.state:
            if state not in TRANSITIONS[self.state]:
                raise AssertionError(f"a file cannot go from {self.state} to {state}")
            self.state = state

    def rests(self, account: Hashable, now_s: float) -> bool:
        failure = self.failures.get(account)
        return failure is not None and failure.rests_until_s is not None and now_s < failure.rests_until_s

    def first_waiting(self) -> T | None:
        """For whom the file is waited for, the first to ask of those whose account has not failed."""
        return next((wanted for wanted in self.waiting.values() if wanted.account not in self.failures), None)

    @property
    def is_idle(self) -> bool:
        rests = any(failure.rests_until_s is not None for failure in self.failures.values())
        return not (self.listed or self.waiting or self.n_holding or rests or self.state is FileState.MOVING)


@dataclass(frozen=True, slots=True)
class _AnnouncedList:
    number: int
    keys: tuple[Hashable, ...]
    held: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """Transfers that begin now; and the waiters that are no longer subscribed, since their files can have no room."""

    begun: list[T]
    without_room: list[tuple[T, list[Hashable]]]


@dataclass(frozen=True, slots=True)
class FileDemand:
    """How soon a file is needed: its first place in any list (None: in none), and whether a reader holds it open."""

    place: int | None
    is_held: bool


_NO_DEMAND: Final = FileDemand(None, False)


class TransferLedger(Generic[T]):
    """Subscriptions, the queue and the state of every file of one fetcher. Not thread-safe: its driver holds a lock."""

    def __init__(self, limits: FetchLimits, now_s: float) -> None:
        self._limits = limits
        self._files: dict[Hashable, _TrackedFile[T]] = {}
        self._lists: dict[str, dict[str, _AnnouncedList]] = {}  # job → reader → list
        self._queue: list[tuple[int, int, int, Hashable]] = []  # place, age, number of the list, file
        self._n_asked = 0  # upper bound of the entries in the queue that still mean something
        self._n_moving = 0
        self._n_numbered = 0  # lists and entries so far
        self._waited_for: dict[Hashable, T] = {}  # waiter → what
        self._leases: OrderedDict[Hashable, float] = OrderedDict()  # waiter → its end, the first to end first
        self._resting: deque[tuple[float, Hashable, Hashable]] = deque()  # end, file, account
        self._changed: dict[Hashable, None] = {}  # files whose demand may be another than when it was last asked for
        self._connections: dict[str, int] = {}  # job → how many
        self._job_ends_s: dict[str, float] = {}
        self._ends_s: float | None = now_s + limits.first_grace_s

    # --- events

    def opened(self, job: str, is_its: Callable[[Any], bool] = lambda key: False) -> bool:
        """A connection of this job was made. Whether the job is new.

        Failures of a new job's files, as `is_its` tells, rest no more.
        """
        is_new = job not in self._connections and job not in self._job_ends_s
        if is_new:
            self._forgive(is_its)
        self._connections[job] = self._connections.get(job, 0) + 1
        self._job_ends_s.pop(job, None)
        self._ends_s = None
        return is_new

    def closed(self, job: str, now_s: float) -> None:
        """A connection of this job ended."""
        self._connections[job] -= 1
        if not self._connections[job]:
            del self._connections[job]
            self._job_ends_s[job] = now_s + self._limits.grace_s
        if not self._connections:
            self._ends_s = now_s + self._limits.grace_s

    def announced(
        self,
        job: str,
        reader: str,
        files: Iterable[tuple[T, bool]],
        now_s: float,
        *,
        held: Iterable[Hashable] = (),
        first: int = 0,
    ) -> None:
        """A reader announced a list, in order of first use, each file with whether it is on disk; it replaces the last.

        The first file has the place `first`. Files of the keys `held` are open and must not be evicted. A job that has
        gone can have no list.
        """
        if job not in self._connections and job not in self._job_ends_s:
            return
        number = self._next_number()
        keys = []
        for place, (wanted, is_present) in enumerate(files, start=first):
            keys.append(wanted.key)
            self._list(number, place, wanted, is_present, now_s)
        holds = tuple(dict.fromkeys(held))
        for key in holds:
            self._entry(key, FileState.PRESENT).n_holding += 1
            self._changed[key] = None
        old = self._lists.setdefault(job, {}).pop(reader, None)
        if keys or holds:
            self._lists[job][reader] = _AnnouncedList(number, tuple(keys), holds)
        if old is not None:
            self._drop(old)

    def subscribe(self, waiter: Hashable, wanted: T, now_s: float) -> object:
        """The waiter waits for a file that is not on disk, or goes on waiting. None, or the failure that stands.

        With a failure it is not subscribed.
        """
        known = self._waited_for.get(waiter)
        if known is not None and (known.key, known.account) == (wanted.key, wanted.account):
            self._renew(waiter, now_s)
            return None
        self.unsubscribe(waiter)
        entry = self._entry(wanted.key, FileState.QUEUED)
        if entry.rests(wanted.account, now_s):
            return entry.failures[wanted.account].error
        entry.failures.pop(wanted.account, None)
        entry.waiting[waiter] = self._waited_for[waiter] = wanted
        self._renew(waiter, now_s)
        self._changed[wanted.key] = None
        if entry.state is not FileState.MOVING:
            entry.go_to(FileState.QUEUED)
            self._push(URGENT, _NO_LIST, wanted.key)
        return None

    def unsubscribe(self, waiter: Hashable) -> None:
        """The waiter does not wait any more, if it did."""
        wanted = self._waited_for.pop(waiter, None)
        if wanted is None:
            return
        self._leases.pop(waiter, None)
        entry = self._files[wanted.key]
        del entry.waiting[waiter]
        self._changed[wanted.key] = None
        self._forget_if_idle(wanted.key, entry)

    def evicted(self, key: Hashable) -> None:
        """A file was deleted to make room; if lists have it, it is fetched again when its turn and room come."""
        entry = self._files.get(key)
        if entry is None or entry.state is not FileState.PRESENT:
            return
        self._queue_again(key, entry)
        self._forget_if_idle(key, entry)

    def finished(self, key: Hashable, now_s: float, *, failure: object = None, rests: bool = True) -> list[Hashable]:
        """A transfer ended; the file is on disk unless there is a failure. The waiters that are answered by that.

        `rests`: trying the failure again at once is no use.
        """
        entry = self._files[key]
        moved_for = self._stopped(entry)
        if failure is None:
            entry.go_to(FileState.PRESENT)
            entry.failures.clear()
            answered = list(entry.waiting)
        else:
            until_s = now_s + self._limits.rest_s if rests else None
            entry.failures[moved_for.account] = _Failure(failure, until_s)
            if until_s is not None:
                self._resting.append((until_s, key, moved_for.account))
            answered = [waiter for waiter, wanted in entry.waiting.items() if wanted.account == moved_for.account]
            self._queue_again(key, entry)
        for waiter in answered:
            self.unsubscribe(waiter)
        self._forget_if_idle(key, entry)
        return answered

    def abandoned(self, key: Hashable) -> None:
        """A transfer was given up because nobody wanted the file; it has its turn again if somebody does by now."""
        entry = self._files[key]
        self._stopped(entry)
        self._queue_again(key, entry)
        self._forget_if_idle(key, entry)

    def passed(self, now_s: float) -> list[str]:
        """Time went by: drop the lists of jobs that have gone, leases that have ended and failures that have rested.

        Returns the jobs that have gone.
        """
        over = [job for job, ends_s in self._job_ends_s.items() if ends_s <= now_s]
        for job in over:
            del self._job_ends_s[job]
            for dead in self._lists.pop(job, {}).values():
                self._drop(dead)
        while self._leases and next(iter(self._leases.values())) <= now_s:
            self.unsubscribe(next(iter(self._leases)))
        while self._resting and self._resting[0][0] <= now_s:
            until_s, key, account = self._resting.popleft()
            entry = self._files.get(key)
            failure = None if entry is None else entry.failures.get(account)
            if entry is not None and failure is not None and failure.rests_until_s == until_s:  # else it failed again
                entry.failures[account] = _Failure(failure.error, None)
                self._forget_if_idle(key, entry)
        return over

    # --- answers

    def take(self, has_room: Callable[[T, int], bool] = lambda wanted, place: True) -> Taken[T]:
        """Take what begins now. `has_room(wanted, place)` reserves the room for a file, or says that there is none."""
        begun: list[T] = []
        without_room: list[tuple[T, list[Hashable]]] = []
        while self._queue and self._n_moving < self._limits.n_transfers:
            place, _, number, key = self._queue[0]
            wanted = self._wanted(number, key)
            if wanted is None:
                heapq.heappop(self._queue)
            elif has_room(wanted, place):
                heapq.heappop(self._queue)
                entry = self._files[key]
                entry.go_to(FileState.MOVING)
                entry.moving_for = wanted
                self._n_moving += 1
                begun.append(wanted)
            elif place == URGENT:
                heapq.heappop(self._queue)
                waiters = list(self._files[key].waiting)
                for waiter in waiters:
                    self.unsubscribe(waiter)
                without_room.append((wanted, waiters))
            else:
                break
        self._n_asked = min(self._n_asked, len(self._queue))
        return Taken(begun, without_room)

    def demand_for(self, key: Hashable) -> FileDemand:
        """How soon a file is needed, as far as subscriptions say."""
        entry = self._files.get(key)
        if entry is None:
            return _NO_DEMAND
        place = min((place for place, _ in entry.listed.values()), default=None)
        return FileDemand(place, entry.n_holding > 0 or bool(entry.waiting))

    def changed(self) -> list[Hashable]:
        """The files whose demand may have changed since this was last asked."""
        changed, self._changed = list(self._changed), {}
        return changed

    def is_wanted(self, key: Hashable) -> bool:
        """Whether anybody subscribes to the file."""
        entry = self._files.get(key)
        return entry is not None and bool(entry.listed or entry.waiting)

    def next_moment_s(self) -> float | None:
        """When `passed` has something to do, or the fetcher ends; None: not before the next event."""
        moments = [*self._job_ends_s.values()]
        if self._ends_s is not None:
            moments.append(self._ends_s)
        if self._resting:
            moments.append(self._resting[0][0])
        if self._leases:
            moments.append(next(iter(self._leases.values())))
        return min(moments, default=None)

    def is_over(self, now_s: float) -> bool:
        """Whether the fetcher has had no connection for long enough to end."""
        return self._ends_s is not None and self._ends_s <= now_s

    @property
    def n_moving(self) -> int:
        """Transfers that have begun and not ended."""
        return self._n_moving

    @property
    def n_known(self) -> int:
        """Files that are remembered."""
        return len(self._files)

    @property
    def n_queued(self) -> int:
        """Entries of the queue, outdated ones included."""
        return len(self._queue)

    @property
    def n_connections(self) -> int:
        """Connections of all jobs."""
        return sum(self._connections.values())

    # --- internals

    def _next_number(self) -> int:
        self._n_numbered += 1
        return self._n_numbered

    def _entry(self, key: Hashable, state: FileState) -> _TrackedFile[T]:
        """The file, remembered in this state if it is new."""
        entry = self._files.get(key)
        if entry is None:
            entry = self._files[key] = _TrackedFile(state)
        return entry

    def _list(self, number: int, place: int, wanted: T, is_present: bool, now_s: float) -> None:
        """Add one file to a new list."""
        key = wanted.key
        entry = self._entry(key, FileState.PRESENT if is_present else FileState.QUEUED)
        entry.listed.setdefault(number, (place, wanted))
        self._changed[key] = None
        if entry.state is FileState.MOVING:
            return
        if is_present:
            entry.go_to(FileState.PRESENT)
            entry.failures.clear()
        elif not entry.rests(wanted.account, now_s):
            entry.failures.pop(wanted.account, None)
            entry.go_to(FileState.QUEUED)
            self._push(place, number, key)

    def _forgive(self, is_its: Callable[[Any], bool]) -> None:
        """Have the next who asks for these files try again what failed."""
        for until_s, key, account in self._resting:
            entry = self._files.get(key)
            failure = None if entry is None else entry.failures.get(account)
            if entry is not None and failure is not None and failure.rests_until_s == until_s and is_its(key):
                entry.failures[account] = _Failure(failure.error, None)
                self._forget_if_idle(key, entry)

    def _renew(self, waiter: Hashable, now_s: float) -> None:
        self._leases[waiter] = now_s + self._limits.lease_s
        self._leases.move_to_end(waiter)

    def _push(self, place: int, number: int, key: Hashable) -> None:
        # Replaced lists leave their entries behind. When these are most of the queue it is built anew, so its size and
        # the cost of an event stay bounded by what is asked for now.
        if len(self._queue) > 1024 + 2 * self._n_asked:
            self._queue = [entry for entry in self._queue if self._wanted(entry[2], entry[3]) is not None]
            heapq.heapify(self._queue)
            self._n_asked = len(self._queue)
        heapq.heappush(self._queue, (place, self._next_number(), number, key))

    def _stopped(self, entry: _TrackedFile[T]) -> T:
        """Whom the transfer was for that has ended."""
        self._n_moving -= 1
        moved_for, entry.moving_for = entry.moving_for, None
        assert moved_for is not None
        return moved_for

    def _queue_again(self, key: Hashable, entry: _TrackedFile[T]) -> None:
        """Give the file its turn again for every subscriber whose account has not failed."""
        is_waited_for = entry.first_waiting() is not None
        listed = [(number, place) for number, (place, of) in entry.listed.items() if of.account not in entry.failures]
        has_failed = bool(entry.failures) and not is_waited_for and not listed
        entry.go_to(FileState.FAILED if has_failed else FileState.QUEUED)
        if is_waited_for:
            self._push(URGENT, _NO_LIST, key)
        for number, place in listed:
            self._push(place, number, key)

    def _wanted(self, number: int, key: Hashable) -> T | None:
        """For whom an entry of the queue is, None if it means nothing any more."""
        entry = self._files.get(key)
        if entry is None or entry.state is not FileState.QUEUED:
            return None
        if number == _NO_LIST:
            return entry.first_waiting()
        listed = entry.listed.get(number)
        return None if listed is None or listed[1].account in entry.failures else listed[1]

    def _drop(self, dead: _AnnouncedList) -> None:
        for key in dict.fromkeys(dead.keys):
            entry = self._files[key]
            entry.listed.pop(dead.number, None)
            self._changed[key] = None
            if key not in dead.held:
                self._forget_if_idle(key, entry)
        for key in dead.held:
            entry = self._files[key]
            entry.n_holding -= 1
            self._changed[key] = None
            self._forget_if_idle(key, entry)

    def _forget_if_idle(self, key: Hashable, entry: _TrackedFile[T]) -> None:
        if entry.is_idle:
            self._files.pop(key, None)
