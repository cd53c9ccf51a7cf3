"""Carrying out what the policy decides: the threads that move files, and those who wait for them.

Decided under the lock, done outside it: no disk, no network and no scan while it is held. A file that somebody waits
for has one event, so its arrival wakes those who wait for it and nobody else.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from streaming.cache.files import sweep
from streaming.cache.shelf import Need
from streaming.errors import CredentialsWantedError, FetchError, NoRoomError, StreamingError
from streaming.fetch.parts import MIN_BYTES, PART_BYTES
from streaming.fetch.policy import URGENT, FetchPolicy, Limits
from streaming.fetch.protocol import Answer, Done, Failed, Hello, Pending
from streaming.fetch.room import Room, delete
from streaming.fetch.tally import Tally
from streaming.fetch.transfer import FileTask, Means, Moved, fetch_file

_BEHIND: Final = 1 << 30  # the place of a file that is fetched because much of it was read by range


def log(words: str) -> None:
    """One entry of the fetcher's log, which is its standard error; a full disk must not stop what is logged."""
    with contextlib.suppress(OSError, ValueError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), words, file=sys.stderr, flush=True)  # noqa: T201


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
    leaving: list[str]  # to be deleted first
    refused: list[tuple[FileTask, _Arrival]]  # they can have no room


class Engine:
    """Owns the policy, the room, their lock and the threads of the transfers."""

    def __init__(self, means: Means, tally: Tally, limits: Limits) -> None:
        self._means, self._tally, self._limits = means, tally, limits
        self._lock = threading.Lock()
        self._policy: FetchPolicy[FileTask] = FetchPolicy(limits, time.monotonic())
        self._room = Room(self._need_of, means.temporaries)
        self._arrivals: dict[FileTask, _Arrival] = {}
        self._moving: dict[FileTask, Moved] = {}
        self._work: queue.SimpleQueue[tuple[FileTask, int]] = queue.SimpleQueue()
        self._n_threads = 0
        self._folders: set[str] = set()
        self._n_ended = 0

    # --- events

    def opened(self, hello: Hello) -> None:
        """A client said hello. Returns when what lies below its roots is known, if it set a limit."""
        with self._lock:
            self._policy.opened(hello.job)
            if hello.cache_limit >= 0:
                roots = [config.root or config.local for config in hello.streams]
                self._room.limit(hello.job, hello.cache_limit, roots, [config.local for config in hello.streams])
            is_due = self._room.is_due(time.time())
        self.roots([config.local for config in hello.streams])
        if is_due:
            self._room.look(self._lock)

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
            if self._room.is_limited:
                now_s = time.time()
                self._room.known(files, now_s)
                self._room.known([(task, True) for task in held], now_s)
            self._policy.announced(job, reader, files, time.monotonic(), held=held)
            begun = self._begin()
        self._run(begun)

    def wait(self, task: FileTask, *, slice_s: float) -> Answer:
        """Done if the file is there, Failed if it cannot come, Pending after `slice_s`."""
        if task.is_done():
            if self._room.is_limited:
                with self._lock:
                    self._room.awaited(task, time.time())
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
            self._policy.released(task)
            arrival.n_waiting -= 1
            if not arrival.n_waiting and self._arrivals.get(task) is arrival:
                del self._arrivals[task]
            moved = self._moving.get(task)
            n_ended = self._n_ended
        if came:
            return Done() if arrival.failure is None else Failed(arrival.failure)
        return Pending(moved.token if moved is not None else f"queued:{n_ended}")

    def want_behind(self, job: str, task: FileTask) -> None:
        """Fetch a file after all that is announced: much of it has been read by range."""
        with self._lock:
            self._policy.announced(job, f"whole:{task.path}", [(task, task.is_done())], time.monotonic(), first=_BEHIND)
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
                self._room.lift(job)
            moment_s = self._policy.next_moment_s()
            is_due = self._room.is_due(time.time())
            is_over = self._policy.is_over(now_s)
        if is_due and not is_over:
            threading.Thread(target=self._room.look, args=(self._lock,), name="look", daemon=True).start()
        return is_over, None if moment_s is None else max(0.0, moment_s - now_s), jobs_gone

    def table_came(self, path: str, n_bytes: int) -> None:
        """An offset table was placed beside its file."""
        with self._lock:
            self._room.table_came(path, n_bytes)

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

    def _need_of(self, task: FileTask) -> Need:
        standing = self._policy.standing(task)
        return Need(standing.place, standing.is_held)

    def _begin(self) -> _Begun:
        """With the lock: what is to be moved from now on."""
        leaving: list[str] = []

        def has_room(task: FileTask, place: int) -> bool:
            found = self._room.take(task, place)
            if found is None:
                return False
            leaving.extend(found.paths)
            for gone in found.tasks:
                self._policy.evicted(gone)
            return True

        taken = self._policy.take(has_room)
        for task in taken.begun:
            self._moving[task] = Moved()
        refused = [(task, self._arrivals.pop(task)) for task in taken.without_room if task in self._arrivals]
        is_calm = self._policy.n_queued == 0
        return _Begun([(task, self._n_parts(task) if is_calm else 1) for task in taken.begun], leaving, refused)

    def _n_parts(self, task: FileTask) -> int:
        """Over how many connections a file comes that nothing else keeps waiting."""
        n_bytes = task.need.n_bytes
        if n_bytes < MIN_BYTES:
            return 1
        return max(1, min(n_bytes // PART_BYTES, self._limits.n_transfers // max(1, self._policy.n_moving)))

    def _run(self, begun: _Begun) -> None:
        delete(begun.leaving)  # before anything moves, so that the limit holds
        for task, arrival in begun.refused:
            arrival.failure = NoRoomError(
                f"{task.shown} has no room: the cache below {task.config.root or task.local} is full of what is "
                "needed sooner or is in use; raise cache_limit"
            )
            arrival.event.set()
        for file in begun.files:
            self._work.put(file)
        with self._lock:
            n_new = min(self._policy.n_moving, self._limits.n_transfers) - self._n_threads
            self._n_threads += max(0, n_new)
        for _ in range(n_new):
            threading.Thread(target=self._move_files, name="transfer", daemon=True).start()

    def _move_files(self) -> None:
        while True:
            task, n_parts = self._work.get()
            moved = self._moving[task]
            failure = self._moved(task, moved, n_parts)
            fetched = failure is None and moved.n_attempts > 0
            self._tally.add(
                task.remote, bytes=moved.n_bytes, files=fetched, failures=failure is not None, attempts=moved.n_attempts
            )
            with self._lock:
                rests = not isinstance(failure, CredentialsWantedError)
                self._policy.finished(task, time.monotonic(), failure=failure, rests=rests)
                arrival = self._arrivals.pop(task, None)
                self._room.ended(task, is_there=failure is None, is_awaited=arrival is not None)
                del self._moving[task]
                self._n_ended += 1
                begun = self._begin()
            if arrival is not None:
                arrival.failure = failure
                arrival.event.set()
            self._run(begun)

    def _moved(self, task: FileTask, moved: Moved, n_parts: int) -> StreamingError | None:
        """Fetch one file; what kept it from coming."""
        try:
            try:
                fetch_file(task, self._means, moved, n_parts=n_parts)
            except NoRoomError:
                if not self._made_room(task):
                    raise
                fetch_file(task, self._means, moved)
        except StreamingError as error:
            log(f"not fetched: {type(error).__name__}: {error}")
            return error
        except Exception as error:
            log(traceback.format_exc())
            return FetchError(f"{task.shown}: the fetcher failed with {error!r}; its log has the details")
        return None

    def _made_room(self, task: FileTask) -> bool:
        """Whether a full disk has more room now: rubbish of dead writers went, or what nobody needs any more."""
        with self._lock:
            folders = list(self._folders)
        if sum(map(sweep, folders)):
            return True
        self._room.look(self._lock, all_roots=[*folders, task.config.root or task.local])
        with self._lock:
            place = self._policy.standing(task).place
            leaving = self._room.free(task, URGENT if place is None else place, folders)
            for gone in leaving.tasks:
                self._policy.evicted(gone)
        delete(leaving.paths)
        return bool(leaving.paths)
