"""Carrying out what the policy decides: the threads that move files, and those who wait for them.

Decided under the lock, done outside it: no disk, no network and no scan while it is held. A file that somebody waits
for has one event, so its arrival wakes those who wait for it and nobody else.
"""

from __future__ import annotations

import contextlib
import queue
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from streaming.cache.files import Temporaries, sweep
from streaming.errors import FetchError, NoRoomError, StreamingError
from streaming.fetch.policy import FetchPolicy, Limits
from streaming.fetch.protocol import Answer, Done, Failed, Pending
from streaming.fetch.transfer import FileTask, Moved, fetch_file
from streaming.storage.store import Store

_N_ERRANDS: Final = 8  # uploads and the like at once; each upload holds 32 MiB


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


class Engine:
    """Owns the policy, its lock and the threads of the transfers."""

    def __init__(self, open_store: Callable[[str, float], Store], temporaries: Temporaries, limits: Limits) -> None:
        self._open_store, self._temporaries, self._limits = open_store, temporaries, limits
        self._lock = threading.Lock()
        self._policy: FetchPolicy[FileTask] = FetchPolicy(limits, time.monotonic())
        self._arrivals: dict[FileTask, _Arrival] = {}
        self._moving: dict[FileTask, Moved] = {}
        self._work: queue.SimpleQueue[FileTask] = queue.SimpleQueue()
        self._n_threads = 0
        self._roots: set[str] = set()
        self._n_files = self._n_bytes = self._n_failures = 0

    # --- events

    def opened(self, job: str) -> None:
        """A client said hello."""
        with self._lock:
            self._policy.opened(job)

    def closed(self, job: str) -> None:
        """A client that had said hello has gone."""
        with self._lock:
            self._policy.closed(job, time.monotonic())

    def roots(self, folders: Sequence[str]) -> None:
        """Cache folders of a client: those seen for the first time are rid of dead writers' temporaries."""
        with self._lock:
            new = [folder for folder in folders if folder not in self._roots]
            self._roots.update(new)
        if new:
            threading.Thread(target=lambda: [sweep(folder) for folder in new], name="sweep", daemon=True).start()

    def announce(self, job: str, reader: str, tasks: Sequence[FileTask]) -> None:
        """Replace this reader's list."""
        files = [(task, task.is_done()) for task in tasks]  # a look at the disk each, before the lock
        with self._lock:
            self._policy.announced(job, reader, files, time.monotonic())
            begun = self._begin()
        self._run(begun)

    def wait(self, task: FileTask, *, slice_s: float) -> Answer:
        """Done if the file is there, Failed if it cannot come, Pending after `slice_s`."""
        if task.is_done():
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
            n_ended = self._n_files + self._n_failures
        if came:
            return Done() if arrival.failure is None else Failed(arrival.failure)
        return Pending(moved.token if moved is not None else f"queued:{n_ended}")

    def passed(self) -> tuple[bool, float | None]:
        """Let time pass: whether the fetcher is to end now, else in how many seconds to call again (None: not yet)."""
        with self._lock:
            now_s = time.monotonic()
            self._policy.passed(now_s)
            moment_s = self._policy.next_moment_s()
            return self._policy.is_over(now_s), None if moment_s is None else max(0.0, moment_s - now_s)

    def numbers(self) -> dict[str, Any]:
        """What has been done and what is going on."""
        with self._lock:
            return {
                "files": self._n_files,
                "bytes": self._n_bytes,
                "failures": self._n_failures,
                "moving": self._policy.n_moving,
                "queued": self._policy.n_queued,
                "known": self._policy.n_known,
                "connections": self._policy.n_connections,
            }

    # --- inside

    def _begin(self) -> list[FileTask]:
        """With the lock: what is to be moved from now on."""
        begun = self._policy.take()
        for task in begun:
            self._moving[task] = Moved()
        return begun

    def _run(self, begun: Sequence[FileTask]) -> None:
        for task in begun:
            self._work.put(task)
        with self._lock:
            n_new = min(self._policy.n_moving, self._limits.n_transfers) - self._n_threads
            self._n_threads += max(0, n_new)
        for _ in range(n_new):
            threading.Thread(target=self._move_files, name="transfer", daemon=True).start()

    def _move_files(self) -> None:
        rng = random.Random()
        while True:
            task = self._work.get()
            moved = self._moving[task]
            failure = self._moved(task, moved, rng)
            with self._lock:
                self._policy.finished(task, time.monotonic(), failure=failure)
                del self._moving[task]
                self._n_bytes += moved.n_bytes
                self._n_files += failure is None and moved.n_attempts > 0
                self._n_failures += failure is not None
                arrival = self._arrivals.pop(task, None)
                begun = self._begin()
            if arrival is not None:
                arrival.failure = failure
                arrival.event.set()
            self._run(begun)

    def _moved(self, task: FileTask, moved: Moved, rng: random.Random) -> StreamingError | None:
        """Fetch one file; what kept it from coming."""
        try:
            try:
                self._fetch(task, moved, rng)
            except NoRoomError:
                if not self._swept():
                    raise
                self._fetch(task, moved, rng)
        except StreamingError as error:
            log(f"not fetched: {type(error).__name__}: {error}")
            return error
        except Exception as error:
            log(traceback.format_exc())
            return FetchError(
                f"{task.name} of {task.remote}: the fetcher failed with {error!r}; its log has the details"
            )
        return None

    def _fetch(self, task: FileTask, moved: Moved, rng: random.Random) -> None:
        fetch_file(task, open_store=self._open_store, temporaries=self._temporaries, moved=moved, rng=rng)

    def _swept(self) -> bool:
        """Whether rubbish of dead writers was found and removed."""
        with self._lock:
            roots = list(self._roots)
        return sum(map(sweep, roots)) > 0


@dataclass(slots=True)
class _Errand:
    moved: Moved
    event: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None


class Errands:
    """Owns uploads and other requests that are no files of the cache, each under its ticket until it is answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errands: dict[str, _Errand] = {}
        self._slots = threading.BoundedSemaphore(_N_ERRANDS)

    def answer(self, ticket: str, run: Callable[[Moved], Done], *, slice_s: float) -> Answer:
        """The answer of the errand with this ticket, begun now if it is new; Pending after `slice_s`."""
        with self._lock:
            errand = self._errands.get(ticket)
            if is_new := errand is None:
                errand = self._errands[ticket] = _Errand(Moved())
        assert errand is not None
        if is_new:
            threading.Thread(target=self._run, args=(errand, run), name="errand", daemon=True).start()
        if not errand.event.wait(slice_s):
            return Pending(errand.moved.token)
        with self._lock:
            self._errands.pop(ticket, None)
        assert errand.answer is not None
        return errand.answer

    def _run(self, errand: _Errand, run: Callable[[Moved], Done]) -> None:
        try:
            with self._slots:
                errand.answer = run(errand.moved)
        except StreamingError as error:
            errand.answer = Failed(error)
        except Exception as error:
            log(traceback.format_exc())
            errand.answer = Failed(FetchError(f"the fetcher failed with {error!r}; its log has the details"))
        errand.event.set()
