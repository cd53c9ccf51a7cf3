"""Which file is fetched next: pure decisions, O(log n) an event.

No clock, no disk, no thread: time and presence come in with the events, files to begin come out of `take`. A file is
anything hashable. The rules:

1. At most `n_transfers` files move at once, and no file twice at once.
2. What somebody waits for goes first, in the order of asking; then what is announced, by its place in its list, so that
   the first file of every reader comes before the second of any.
3. A list lives until it is replaced, or until its job has had no connection for `grace_s`.
4. A file that failed rests: who waits within `rest_s` gets that failure, who waits later has it tried again.
5. Nothing is remembered of a file that is in no list, that nobody holds or waits for, that does not move or rest.
6. A file begins to move when it has room. What is announced does not overtake what has none; what is waited for and can
   have none is said, so that its bytes can come without it.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

F = TypeVar("F", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Limits:
    """What this machine's fetcher may do."""

    n_transfers: int = 16
    grace_s: float = 2.0  # from a job's last connection to the end of its lists; from the last of all to our end
    first_grace_s: float = 10.0  # for the first connection to come
    rest_s: float = 2.0  # how long a failure stands


class Stage(enum.Enum):
    """Where a file stands. Absent and unwanted files are not kept."""

    QUEUED = "queued"
    MOVING = "moving"
    PRESENT = "present"
    FAILED = "failed"


MOVES: Final = {
    Stage.QUEUED: {Stage.MOVING, Stage.PRESENT},  # present: seen on disk, put there by somebody else
    Stage.MOVING: {Stage.PRESENT, Stage.FAILED},
    Stage.PRESENT: {Stage.QUEUED},  # it was evicted, deleted or cut
    Stage.FAILED: {Stage.QUEUED, Stage.PRESENT},
}

URGENT: Final = -1  # the place of what somebody waits for: before every place in a list
_NO_LIST: Final = 0


@dataclass(slots=True)
class _File:
    stage: Stage
    places: dict[int, int]  # number of a list that has it → its place there
    n_holding: int = 0
    n_waiting: int = 0
    failure: object = None
    rests_until_s: float | None = None  # while its end is among the moments to come

    def move(self, stage: Stage) -> None:
        if stage is not self.stage:
            if stage not in MOVES[self.stage]:
                raise AssertionError(f"a file cannot go from {self.stage} to {stage}")
            self.stage = stage


@dataclass(frozen=True, slots=True)
class _List(Generic[F]):
    number: int
    files: tuple[F, ...]
    held: tuple[F, ...]


@dataclass(frozen=True, slots=True)
class Taken(Generic[F]):
    """Files whose transfer begins now, and files that are waited for and can have no room."""

    begun: list[F]
    without_room: list[F]


@dataclass(frozen=True, slots=True)
class Standing:
    """How soon a file is needed: its first place in any list (None: in none), and whether somebody holds it open."""

    place: int | None
    is_held: bool


_UNKNOWN: Final = Standing(None, False)


class FetchPolicy(Generic[F]):
    """The state of one fetcher's decisions. Not thread-safe: who drives it holds a lock."""

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self._files: dict[F, _File] = {}
        self._lists: dict[str, dict[str, _List[F]]] = {}  # job → reader → list
        self._live: set[int] = set()  # numbers of the lists that live
        self._queue: list[tuple[int, int, int, F]] = []  # place, age, number of the list, file
        self._n_asked = 0  # upper bound of the entries in the queue that still mean something
        self._n_moving = 0
        self._n_numbered = 0  # lists and entries so far
        self._resting: deque[tuple[float, F]] = deque()
        self._changed: dict[F, None] = {}  # whose standing may be another than when it was last asked for
        self._connections: dict[str, int] = {}  # job → how many
        self._job_ends_s: dict[str, float] = {}
        self._ends_s: float | None = now_s + limits.first_grace_s

    # --- events

    def opened(self, job: str) -> None:
        """A connection of this job was made."""
        self._connections[job] = self._connections.get(job, 0) + 1
        self._job_ends_s.pop(job, None)
        self._ends_s = None

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
        files: Iterable[tuple[F, bool]],
        now_s: float,
        *,
        held: Iterable[F] = (),
        first: int = 0,
    ) -> None:
        """A reader's list, in order of first use, each file with whether it is on disk; replaces its last list.

        Its first file has the place `first`, and what it holds open is not to be evicted. A job that is gone has none.
        """
        if job not in self._connections and job not in self._job_ends_s:
            return
        number = self._next_number()
        self._live.add(number)
        listed = []
        for place, (name, present) in enumerate(files, start=first):
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = _File(Stage.PRESENT if present else Stage.QUEUED, {})
            listed.append(name)
            file.places.setdefault(number, place)
            self._changed[name] = None
            if present and file.stage is not Stage.MOVING:
                file.move(Stage.PRESENT)
            elif not present and file.stage is not Stage.MOVING and not self._rests(file, now_s):
                file.move(Stage.QUEUED)
                self._push(place, number, name)
        holds = tuple(dict.fromkeys(held))
        for name in holds:
            self._files.setdefault(name, _File(Stage.PRESENT, {})).n_holding += 1
            self._changed[name] = None
        old = self._lists.setdefault(job, {}).pop(reader, None)
        if listed or holds:
            self._lists[job][reader] = _List(number, tuple(listed), holds)
        else:
            self._live.discard(number)
        if old is not None:
            self._drop(old)

    def wanted(self, name: F, now_s: float) -> object:
        """Somebody waits for a file that is not on disk. None, or the failure that stands: then nobody waits."""
        file = self._files.setdefault(name, _File(Stage.QUEUED, {}))
        if self._rests(file, now_s):
            return file.failure
        file.n_waiting += 1
        self._changed[name] = None
        if file.stage is not Stage.MOVING:
            file.move(Stage.QUEUED)
            self._push(URGENT, _NO_LIST, name)
        return None

    def released(self, name: F) -> None:
        """One who waited does so no more."""
        file = self._files[name]
        file.n_waiting -= 1
        self._changed[name] = None
        self._forget_if_idle(name, file)

    def evicted(self, name: F) -> None:
        """A file was deleted to make room; if lists have it, it is fetched again when its turn and room come."""
        file = self._files.get(name)
        if file is None or file.stage is not Stage.PRESENT:
            return
        self._queue_again(name, file)
        self._forget_if_idle(name, file)

    def finished(self, name: F, now_s: float, *, failure: object = None, rests: bool = True) -> None:
        """A transfer ended; the file is there unless there is a failure, which rests if trying at once is no use."""
        self._n_moving -= 1
        file = self._files[name]
        if failure is None:
            file.move(Stage.PRESENT)
            file.failure = None
        else:
            file.move(Stage.FAILED)
            file.failure, file.rests_until_s = failure, None
            if rests:
                file.rests_until_s = now_s + self._limits.rest_s
                self._resting.append((file.rests_until_s, name))
        self._forget_if_idle(name, file)

    def abandoned(self, name: F, now_s: float) -> None:
        """A transfer was given up because nobody wanted the file; it has its turn again if somebody does by now."""
        self.finished(name, now_s, failure="abandoned", rests=False)
        file = self._files.get(name)
        if file is not None:
            self._queue_again(name, file)

    def passed(self, now_s: float) -> list[str]:
        """Time went by: lists of jobs that are gone, and failures that no longer stand, are dropped. The jobs gone."""
        over = [job for job, ends_s in self._job_ends_s.items() if ends_s <= now_s]
        for job in over:
            del self._job_ends_s[job]
            for dead in self._lists.pop(job, {}).values():
                self._drop(dead)
        while self._resting and self._resting[0][0] <= now_s:
            until_s, name = self._resting.popleft()
            file = self._files.get(name)
            if file is not None and file.rests_until_s == until_s:  # else it failed again since
                file.rests_until_s = None
                self._forget_if_idle(name, file)
        return over

    # --- answers

    def take(self, has_room: Callable[[F, int], bool] = lambda name, place: True) -> Taken[F]:
        """What begins now. `has_room(file, place)` takes the room for a file, or says that there is none."""
        begun, without_room = [], []
        while self._queue and self._n_moving < self._limits.n_transfers:
            place, _, number, name = self._queue[0]
            if not self._means_something(number, name):
                heapq.heappop(self._queue)
            elif has_room(name, place):
                heapq.heappop(self._queue)
                self._files[name].move(Stage.MOVING)
                self._n_moving += 1
                begun.append(name)
            elif place == URGENT:
                heapq.heappop(self._queue)
                without_room.append(name)
            else:
                break
        self._n_asked = min(self._n_asked, len(self._queue))
        return Taken(begun, without_room)

    def standing(self, name: F) -> Standing:
        """How soon a file is needed, as far as lists tell."""
        file = self._files.get(name)
        if file is None:
            return _UNKNOWN
        return Standing(min(file.places.values(), default=None), file.n_holding > 0 or file.n_waiting > 0)

    def changed(self) -> list[F]:
        """The files whose standing may have changed since this was last asked."""
        changed, self._changed = list(self._changed), {}
        return changed

    def is_wanted(self, name: F) -> bool:
        """Whether any list names the file, or anybody waits for it."""
        file = self._files.get(name)
        return file is not None and bool(file.places or file.n_waiting)

    def next_moment_s(self) -> float | None:
        """When `passed` has something to do, or the fetcher ends; None: not before the next event."""
        moments = [*self._job_ends_s.values()]
        if self._ends_s is not None:
            moments.append(self._ends_s)
        if self._resting:
            moments.append(self._resting[0][0])
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

    # --- inside

    def _next_number(self) -> int:
        self._n_numbered += 1
        return self._n_numbered

    def _push(self, place: int, number: int, name: F) -> None:
        # Replaced lists leave their entries behind; when these are most of the queue it is built anew, so its size and
        # the cost of an event stay bounded by what is asked for now.
        if len(self._queue) > 1024 + 2 * self._n_asked:
            self._queue = [entry for entry in self._queue if self._means_something(entry[2], entry[3])]
            heapq.heapify(self._queue)
            self._n_asked = len(self._queue)
        heapq.heappush(self._queue, (place, self._next_number(), number, name))

    def _queue_again(self, name: F, file: _File) -> None:
        """What was under way or there is not: whoever still wants it has its turn."""
        file.move(Stage.QUEUED)
        if file.n_waiting:
            self._push(URGENT, _NO_LIST, name)
        for number, place in file.places.items():
            self._push(place, number, name)

    def _means_something(self, number: int, name: F) -> bool:
        file = self._files.get(name)
        if file is None or file.stage is not Stage.QUEUED:
            return False
        return file.n_waiting > 0 if number == _NO_LIST else number in self._live

    def _rests(self, file: _File, now_s: float) -> bool:
        return file.stage is Stage.FAILED and file.rests_until_s is not None and now_s < file.rests_until_s

    def _drop(self, dead: _List[F]) -> None:
        self._live.discard(dead.number)
        for name in dict.fromkeys(dead.files):
            file = self._files[name]
            file.places.pop(dead.number, None)
            self._changed[name] = None
            if name not in dead.held:
                self._forget_if_idle(name, file)
        for name in dead.held:
            file = self._files[name]
            file.n_holding -= 1
            self._changed[name] = None
            self._forget_if_idle(name, file)

    def _forget_if_idle(self, name: F, file: _File) -> None:
        rests = file.stage is Stage.FAILED and file.rests_until_s is not None
        if not (file.places or file.n_holding or file.n_waiting or rests or file.stage is Stage.MOVING):
            self._files.pop(name, None)
