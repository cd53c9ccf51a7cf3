"""Carrying out what the policy decides: the threads that move files, and those who wait for them.

Decided under the lock, done outside it: no disk, no network and no scan while it is held. A file that somebody waits
for has one event, so its arrival wakes those who wait for it and nobody else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from streaming.cache.files import is_present, sweep
from streaming.errors import CredentialsWantedError, NoRoomError, StreamingError
from streaming.fetch.log import log
from streaming.fetch.moving import LimitError, move_file
from streaming.fetch.parts import MIN_BYTES, PART_BYTES
from streaming.fetch.policy import FetchPolicy, Limits
from streaming.fetch.protocol import Answer, Done, Failed, Hello, Pending
from streaming.fetch.room import Begun, Room, Tenant
from streaming.fetch.speed import Speed
from streaming.fetch.tally import Tally
from streaming.fetch.task import AbandonedError, FileTask, Moved
from streaming.fetch.transfer import Means
from streaming.fetch.turns import Turns
from streaming.fetch.watch import Watch

_BEHIND: Final = 1 << 30  # the place of a file that is fetched because much of it was read by range
_ROOM_AGAIN_S: Final = 0.25


@dataclass(slots=True)
class _Arrival:
    """What those who wait for one file share."""

    event: threading.Event = field(default_factory=threading.Event)
    n_waiting: int = 0
    failure: StreamingError | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """What one look at the policy came to: to be done without the lock."""

    files: list[tuple[FileTask, int]]  # with the number of connections for each
    begun: Begun
    refused: list[tuple[_Arrival, NoRoomError]]


class Engine:
    """Owns the policy, the room, their lock and the threads of the transfers."""

    def __init__(self, means: Means, tally: Tally, limits: Limits) -> None:
        self._means, self._tally, self._limits = means, tally, limits
        self._lock = threading.Lock()
        self._policy: FetchPolicy[FileTask] = FetchPolicy(limits, time.monotonic())
        self._room = Room(self._policy)
        self._watch = Watch(self._room, self._lock, means.temporaries)
        self._keeps_room = False
        self._behind: dict[FileTask, str] = {}  # what is fetched because much of it was read by range → for which job
        self._arrivals: dict[FileTask, _Arrival] = {}
        self._moving: dict[FileTask, Moved] = {}
        self._transfers = Turns(limits.n_transfers, "transfer")
        self._folders: set[str] = set()
        self._n_ended = self._n_ended_bytes = 0  # transfers, and what came of them
        self._speed = Speed()

    # --- events

    def opened(self, hello: Hello) -> None:
        """A client said hello. Returns when what lies below its roots is known and its limit holds, if it set one."""
        tenant = Tenant.of(hello)
        with self._lock:
            self._policy.opened(hello.job)
            is_to_be_looked_at = self._room.admit(hello.job, tenant, time.time())
        try:
            self.roots([config.local for config in hello.streams])
            if is_to_be_looked_at:
                self._hold_limit(hello.job)
        except BaseException:
            self.closed(hello.job)
            raise

    def closed(self, job: str) -> None:
        """A client that had said hello has gone."""
        with self._lock:
            self._policy.closed(job, time.monotonic())

    def roots(self, folders: Sequence[str]) -> None:
        """Cache folders of a client: those seen for the first time are rid of dead writers' temporaries."""
        with self._lock:
            new = [folder for folder in folders if folder not in self._folders]
            self._folders.update(new)
        if new:
            threading.Thread(target=lambda: [sweep(folder) for folder in new], name="sweep", daemon=True).start()

    def announce(self, job: str, reader: str, tasks: Sequence[FileTask], held: Sequence[FileTask] = ()) -> None:
        """Replace this reader's list."""
        files = [(task, task.is_done()) for task in tasks]  # a look at the disk each, before the lock
        with self._lock:
            for task in held if self._room.is_limited else ():
                self._room.held(task, time.time())
            self._policy.announced(job, reader, files, time.monotonic(), held=held)
            begun = self._begin()
        self._run(begun)

    def wait(self, task: FileTask, *, slice_s: float) -> Answer:
        """Done if the file is there, Failed if it cannot come, Pending after `slice_s`."""
        if task.is_done():
            with self._lock:
                self._room.used(task, time.time())
            return Done()
        with self._lock:
            failure = self._policy.wanted(task, time.monotonic())
            if isinstance(failure, StreamingError):
                return Failed(failure)
            arrival = self._arrivals.setdefault(task, _Arrival())
            arrival.n_waiting += 1
            begun = self._begin()
        self._run(begun)
        came = arrival.event.wait(slice_s)
        with self._lock:
            if came and arrival.failure is None:
                self._room.used(task, time.time())
            self._policy.released(task)
            arrival.n_waiting -= 1
            if not arrival.n_waiting and self._arrivals.get(task) is arrival:
                del self._arrivals[task]
            moved = self._moving.get(task)
            n_ended = self._n_ended
        if came:
            return Done() if arrival.failure is None else Failed(arrival.failure)
        return Pending(moved.token if moved is not None else f"queued:{n_ended}")

    def opened_file(self, task: FileTask) -> None:
        """Who has waited for this file goes on, so has it open; deleting it harms nobody any more."""
        with self._lock:
            self._room.opened(task)

    def want_behind(self, job: str, task: FileTask) -> None:
        """Fetch a file after all that is announced: much of it has been read by range."""
        is_done = task.is_done()
        with self._lock:
            if is_done or task in self._behind:
                return
            self._policy.announced(job, _behind(task), [(task, False)], time.monotonic(), first=_BEHIND)
            if self._policy.standing(task).place is not None:  # else the job has gone
                self._behind[task] = job
            begun = self._begin()
        self._run(begun)

    def left_s(self, task: FileTask) -> float:
        """In how many seconds a file that moves will be there; infinite for one that does not move."""
        moved = self._moving.get(task)
        return float("inf") if moved is None else moved.left_s(task.need.n_bytes)

    def passed(self) -> tuple[bool, float | None, list[str]]:
        """Let time pass: whether the fetcher is to end now, in how many seconds to call again, and which jobs are gone.

        None: not before the next event.
        """
        with self._lock:
            now_s = time.monotonic()
            jobs_gone = self._policy.passed(now_s)
            for job in jobs_gone:
                self._room.lift(job, time.time())
            self._behind = {task: job for task, job in self._behind.items() if job not in jobs_gone}
            begun = self._begin()  # their limits and lists no longer keep others from coming
            moment_s = self._policy.next_moment_s()
            is_over = self._policy.is_over(now_s)
        self._run(begun)
        return is_over, None if moment_s is None else max(0.0, moment_s - now_s), jobs_gone

    @contextlib.contextmanager
    def room_for_table(self, path: str, n_bytes: int) -> Iterator[bool]:
        """Whether there is room for an offset table, which is placed in this block."""
        with self._lock:
            begun = self._room.begin_table(path, n_bytes, time.time())
        if begun is None:
            yield False
            return
        n_placed = -1
        try:
            self._delete(begun)
            yield True
            n_placed = n_bytes if is_present(path, n_bytes) else -1
        finally:
            with self._lock:
                self._room.table_ended(path, n_placed, time.time())

    def bytes_per_s(self) -> float | None:
        """How fast files come, lately; None: not known."""
        with self._lock:
            return self._speed.bytes_per_s(self._n_moved_bytes(), time.monotonic())

    def numbers(self) -> dict[str, Any]:
        """What has been done and what is going on."""
        with self._lock:
            return {
                "moving": self._policy.n_moving,
                "moving_bytes": sum(moved.n_bytes for moved in self._moving.values()),
                "queued": self._policy.n_queued,
                "known": self._policy.n_known,
                "connections": self._policy.n_connections,
                "evicted": self._room.n_evicted,
                "cache_bytes": self._room.n_bytes,
                "is_limited": self._room.is_limited,
            }

    # --- inside

    def _hold_limit(self, job: str) -> None:
        """Have the limit of a job hold from now on."""
        self._watch.look(job)
        with self._lock:
            self._room.limit(job)
            is_kept, self._keeps_room = self._keeps_room, True
        if not is_kept:
            threading.Thread(target=self._keep_room, name="room", daemon=True).start()

    def _begin(self) -> _Begun:
        """With the lock: what is to be moved from now on, and what is not any more."""
        for task, moved in self._moving.items():
            moved.is_wanted = self._policy.is_wanted(task)
        self._speed.note(self._n_moved_bytes(), time.monotonic())
        begun = self._room.begin(time.time())
        for task in begun.tasks:
            self._moving[task] = Moved()
        refused = [
            (arrival, NoRoomError(self._no_room(task)))
            for task in begun.without_room
            if (arrival := self._arrivals.pop(task, None)) is not None
        ]
        is_calm = self._policy.n_queued == 0
        return _Begun([(task, self._n_parts(task) if is_calm else 1) for task in begun.tasks], begun, refused)

    def _n_moved_bytes(self) -> int:
        return self._n_ended_bytes + sum(moved.n_bytes for moved in self._moving.values())

    def _n_parts(self, task: FileTask) -> int:
        """Over how many connections a file comes that nothing else keeps waiting."""
        n_bytes = task.need.n_bytes
        if n_bytes < MIN_BYTES:
            return 1
        return max(1, min(n_bytes // PART_BYTES, self._limits.n_transfers // max(1, self._policy.n_moving)))

    def _run(self, begun: _Begun) -> None:
        self._delete(begun.begun)  # before anything moves, so that the limit holds
        for arrival, error in begun.refused:
            arrival.failure = error
            arrival.event.set()
        for task, n_parts in begun.files:
            turn = self._transfers.submit(time.monotonic(), partial(self._move, task, n_parts))
            turn.result.add_done_callback(_log_fault)

    def _keep_room(self) -> None:
        """While a job has a limit: look at the disk, and begin what had no room before; time makes some, too."""
        while True:
            time.sleep(_ROOM_AGAIN_S)
            with self._lock:
                if not self._room.is_limited:
                    self._keeps_room = False
                    return
                is_due = self._watch.is_due()
            try:
                if is_due:
                    self._watch.look()
                with self._lock:
                    begun = self._begin()
                self._run(begun)
            except Exception:  # the limit must be kept, whatever it was
                log(traceback.format_exc())

    def _delete(self, begun: Begun) -> None:
        """Without the lock: delete what leaves, so that what takes its place may come."""
        if not begun.leaving:
            return
        for path in begun.leaving:
            with contextlib.suppress(OSError):  # gone already, or not ours to delete: the next look tells
                os.unlink(path)
        with self._lock:
            self._room.gone(begun)

    def _no_room(self, task: FileTask) -> str:
        """With the lock: what whoever waits for a file in vain is told."""
        words = f"{task.shown} has no room below {task.config.root or task.local}: {self._room.why_full()}"
        return f"{words}; raise cache_limit"

    def _move(self, task: FileTask, n_parts: int) -> None:
        """Fetch one file, and begin what can begin then."""
        moved = self._moving[task]
        failure = move_file(task, self._means, moved, n_parts, self)
        # What found the purse empty was begun before the credentials came, and those who told us of them have gone on.
        has_missed = isinstance(failure, CredentialsWantedError) and self._means.wallet.has(task.config.purse)
        is_abandoned = isinstance(failure, AbandonedError) or has_missed
        self._tally.add(
            task.remote,
            bytes=moved.n_bytes,
            files=failure is None and moved.n_attempts > 0,
            failures=failure is not None and not is_abandoned,
            attempts=moved.n_attempts,
        )
        n_came = -1 if failure is not None else _n_bytes_at(task.path) if task.need.n_bytes < 0 else moved.n_bytes
        with self._lock:
            if is_abandoned:
                self._policy.abandoned(task, time.monotonic())
            else:
                rests = not isinstance(failure, CredentialsWantedError)
                self._policy.finished(task, time.monotonic(), failure=failure, rests=rests)
            self._room.ended(task, time.time(), n_came=n_came)
            if (job := self._behind.pop(task, None)) is not None:
                self._policy.announced(job, _behind(task), (), time.monotonic())
            del self._moving[task]
            self._n_ended += 1
            self._n_ended_bytes += moved.n_bytes
            arrival = None if is_abandoned else self._arrivals.pop(task, None)
            begun = self._begin()
        if arrival is not None:
            arrival.failure = failure
            arrival.event.set()
        self._run(begun)

    # --- what `move_file` asks for

    def take_room(self, task: FileTask, n_bytes: int) -> None:
        """See `RoomMaker`."""
        with self._lock:
            begun = self._room.sized(task, n_bytes, time.time())
            if begun is None:
                raise LimitError(self._no_room(task))
        self._delete(begun)

    def make_room(self, task: FileTask) -> bool:
        """See `RoomMaker`: rubbish of dead writers goes, or what nobody needs any more."""
        with self._lock:
            folders = list(self._folders)
        if sum(map(sweep, folders)):
            return True
        seen = self._watch.see({*folders, task.config.root or task.local})
        with self._lock:
            leaving = self._room.free(task, seen.files, time.time())
        for path in leaving:
            with contextlib.suppress(OSError):
                os.unlink(path)
        with self._lock:
            self._room.freed(leaving)
        return bool(leaving)


def _log_fault(result: Future[None]) -> None:
    """A fault of ours, which nobody else would hear of."""
    if (error := result.exception()) is not None:
        log("".join(traceback.format_exception(error)))


def _n_bytes_at(path: str) -> int:
    """The size of a file; 0 if it has gone again."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _behind(task: FileTask) -> str:
    return f"whole:{task.path}"
