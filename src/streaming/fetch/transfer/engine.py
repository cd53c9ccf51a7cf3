"""Carries out what `decide` comes to: the threads that move files, and the clients that wait for them.

Decisions are made under the lock and carried out outside it: no disk, network or scan while it is held. Each waiter has
an event of its own, so the arrival of a file wakes its waiters and nobody else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from streaming.cache.files import is_present, sweep
from streaming.errors import CredentialsWantedError, NoRoomError, StreamingError
from streaming.fetch.decide.rates import Throughput
from streaming.fetch.decide.space import JobCaches, SpaceBudget, SpacePlan
from streaming.fetch.decide.transfers import FetchLimits, FileKey, Transfer, TransferLedger
from streaming.fetch.transfer.cache_scan import CacheScan
from streaming.fetch.transfer.deadline_pool import DeadlinePool
from streaming.fetch.transfer.log import log
from streaming.fetch.transfer.parts import MIN_BYTES, PART_BYTES
from streaming.fetch.transfer.stores import TransferProgress
from streaming.fetch.transfer.whole_file import AbandonedError, LimitError, TransferContext, is_on_disk, move_file
from streaming.fetch.wire.protocol import Answer, Done, Failed, Hello, Pending
from streaming.storage.url import Folder

_BEHIND: Final = 1 << 30
"""The place of a file that is fetched because much of it was read by range."""
_ROOM_AGAIN_S: Final = 0.25


class Waiter:
    """A connection that waits for one file at a time, and what came of it."""

    def __init__(self) -> None:
        self.wanted: Transfer | None = None
        self.event = threading.Event()
        self.failure: StreamingError | None = None

    def take_failure(self) -> StreamingError | None:
        """What kept the file from coming, if that has happened; said once."""
        failure, self.failure = self.failure, None
        return failure


@dataclass(frozen=True, slots=True)
class _Moves:
    """What one decision came to: to be carried out without the lock."""

    transfers: list[tuple[Transfer, int]]  # with the number of connections for each
    space: SpacePlan


class Engine:
    """Owns the ledger of transfers, the space budget, their lock and the threads of the transfers."""

    def __init__(self, context: TransferContext, limits: FetchLimits) -> None:
        self._context, self._limits = context, limits
        self._lock = threading.Lock()
        self._ledger: TransferLedger[Transfer] = TransferLedger(limits, time.monotonic())
        self._space = SpaceBudget(self._ledger)
        self._scan = CacheScan(self._space, self._lock, context.temporaries)
        self._keeps_room = False
        self._behind: dict[FileKey, str] = {}  # files fetched because much of them was read by range → for which job
        self._moving: dict[FileKey, TransferProgress] = {}
        self._pool = DeadlinePool(limits.n_transfers, "transfer")
        self._folders: set[str] = set()
        self._n_ended = self._n_ended_bytes = 0  # transfers, and the bytes that they brought
        self._throughput = Throughput()

    # --- jobs

    def opened(self, hello: Hello) -> None:
        """A client said hello. Returns when what lies below its roots is known and its limit, if it set one, holds."""
        caches = caches_of(hello)
        self._context.watch.opened(hello.job, [config.local for config in hello.streams])
        folders = {(config.remote, config.local) for config in hello.streams}
        with self._lock:
            is_new = self._ledger.opened(hello.job, lambda key: (key.remote, key.local) in folders)
            is_to_be_scanned = self._space.admit(hello.job, caches, time.time())
        if is_new:
            self._context.access.retry_budgets.forgive(lambda key: (key.remote, key.local) in folders)
        try:
            self.sweep([config.local for config in hello.streams])
            if is_to_be_scanned:
                self._hold_limit(hello.job)
        except BaseException:
            self.closed(hello.job)
            raise

    def closed(self, job: str) -> None:
        """A client that had said hello has gone."""
        with self._lock:
            self._ledger.closed(job, time.monotonic())

    def sweep(self, folders: Sequence[str]) -> None:
        """Rid the cache folders of a client of dead writers' temporaries, when they are seen for the first time."""
        with self._lock:
            new = [folder for folder in folders if folder not in self._folders]
            self._folders.update(new)
        if new:
            threading.Thread(target=lambda: [sweep(folder) for folder in new], name="sweep", daemon=True).start()

    def passed(self) -> tuple[bool, float | None, list[str]]:
        """Let time pass.

        Returns whether the fetcher is to end now, the seconds until the next call (None: none is needed before the next
        event), and the jobs that have gone.
        """
        with self._lock:
            now_s = time.monotonic()
            jobs_gone = self._ledger.passed(now_s)
            for job in jobs_gone:
                self._space.lift(job, time.time())
                self._context.watch.gone(job)
            self._behind = {key: job for key, job in self._behind.items() if job not in jobs_gone}
            moves = self._decide()  # their limits and lists no longer keep others from coming
            moment_s = self._ledger.next_moment_s()
            is_over = self._ledger.is_over(now_s)
        self._carry_out(moves)
        return is_over, None if moment_s is None else max(0.0, moment_s - now_s), jobs_gone

    # --- subscriptions

    def announce(self, job: str, reader: str, files: Sequence[Transfer], held: Sequence[Transfer] = ()) -> None:
        """Replace this reader's list."""
        listed = [(transfer, is_on_disk(transfer)) for transfer in files]  # a look at the disk each, before the lock
        with self._lock:
            for transfer in held if self._space.is_limited else ():
                self._space.held(transfer.key, time.time())
            keys = [transfer.key for transfer in held]
            self._ledger.announced(job, reader, listed, time.monotonic(), held=keys)
            moves = self._decide()
        self._carry_out(moves)

    def wait(self, waiter: Waiter, transfer: Transfer, *, slice_s: float) -> Answer:
        """Done if the file is on disk, Failed if it cannot come, Pending after `slice_s`; then it stays subscribed."""
        if is_on_disk(transfer):
            self.leave(waiter)
            with self._lock:
                self._space.used(transfer.key, time.time())
            return Done()
        with self._lock:
            missed = waiter.take_failure()
            failure: object = missed if waiter.wanted == transfer else None  # between two slices
            waiter.wanted = transfer
            if failure is None:
                waiter.event.clear()  # the file may have come and gone again between two slices
                failure = self._ledger.subscribe(waiter, transfer, time.monotonic())
            if isinstance(failure, StreamingError):
                self._context.access.retry_budgets.heard(transfer.key, transfer.account)
                return Failed(failure)
            moves = self._decide()
        self._carry_out(moves)
        if waiter.event.wait(slice_s):
            missed = waiter.take_failure()
            return Done() if missed is None else Failed(missed)
        progress = self._moving.get(transfer.key)
        return Pending(progress.token if progress is not None else f"queued:{self._n_ended}")

    def leave(self, waiter: Waiter) -> None:
        """A connection waits for no file any more."""
        if waiter.wanted is None:
            return
        with self._lock:
            self._ledger.unsubscribe(waiter)
            waiter.wanted = None
            waiter.take_failure()

    def opened_file(self, transfer: Transfer) -> None:
        """The client that waited for this file has opened it: deleting it harms nobody any more."""
        with self._lock:
            self._space.opened(transfer.key)

    def want_behind(self, job: str, transfer: Transfer) -> None:
        """Fetch a file after all that is announced, since much of it has been read by range."""
        is_done = is_on_disk(transfer)
        with self._lock:
            if is_done or transfer.key in self._behind:
                return
            reader = _behind(transfer.key)
            self._ledger.announced(job, reader, [(transfer, False)], time.monotonic(), first=_BEHIND)
            if self._ledger.demand_for(transfer.key).place is not None:  # else the job has gone
                self._behind[transfer.key] = job
            moves = self._decide()
        self._carry_out(moves)

    # --- answers

    def left_s(self, transfer: Transfer) -> float:
        """Seconds until a file that moves is on disk; infinite if it does not move."""
        progress = self._moving.get(transfer.key)
        return float("inf") if progress is None else progress.left_s(transfer.file.n_bytes)

    def bytes_per_s(self) -> float | None:
        """How fast files have come lately; None if that is not known."""
        with self._lock:
            return self._throughput.bytes_per_s(self._n_moved_bytes(), time.monotonic())

    @contextlib.contextmanager
    def room_for_table(self, path: str, n_bytes: int) -> Iterator[bool]:
        """Whether there is room for an offset table, which is placed in this block."""
        with self._lock:
            plan = self._space.begin_table(path, n_bytes, time.time())
        if plan is None:
            yield False
            return
        n_placed = -1
        try:
            self._delete(plan)
            yield True
            n_placed = n_bytes if is_present(path, n_bytes) else -1
        finally:
            with self._lock:
                self._space.table_ended(path, n_placed, time.time())

    def numbers(self) -> dict[str, Any]:
        """What is going on, in numbers."""
        with self._lock:
            return {
                "moving": self._ledger.n_moving,
                "moving_bytes": sum(progress.n_bytes for progress in self._moving.values()),
                "queued": self._ledger.n_queued,
                "known": self._ledger.n_known,
                "connections": self._ledger.n_connections,
                "evicted": self._space.n_evicted,
                "cache_bytes": self._space.n_bytes,
                "is_limited": self._space.is_limited,
            }

    # --- decide, then act

    def _decide(self) -> _Moves:
        """Requires the lock. Start what the ledger allows; flag transfers that nobody wants."""
        for key, progress in self._moving.items():
            progress.is_wanted = self._ledger.is_wanted(key)
        self._throughput.note(self._n_moved_bytes(), time.monotonic())
        plan = self._space.begin(time.time())
        for transfer in plan.transfers:
            self._moving[transfer.key] = TransferProgress()
        for transfer, waiters in plan.without_room:
            _answer(waiters, NoRoomError(self._no_room(transfer)))
        is_calm = self._ledger.n_queued == 0
        return _Moves([(each, self._n_parts(each) if is_calm else 1) for each in plan.transfers], plan)

    def _carry_out(self, moves: _Moves) -> None:
        self._delete(moves.space)  # before anything moves, so that the limit holds
        for transfer, n_parts in moves.transfers:
            job = self._pool.submit(time.monotonic(), partial(self._move, transfer, n_parts))
            job.result.add_done_callback(_log_fault)

    def _move(self, transfer: Transfer, n_parts: int) -> None:
        """Fetch one file, and begin what can begin then."""
        progress = self._moving[transfer.key]
        failure = move_file(transfer, self._context, progress, n_parts, self)
        # A transfer that found no credentials began before they came, and whoever brought them has gone on.
        credentials = self._context.access.credentials
        has_missed = isinstance(failure, CredentialsWantedError) and credentials.has(transfer.account.credentials_key)
        is_abandoned = isinstance(failure, AbandonedError) or has_missed
        self._context.access.counters.add(
            transfer.key.remote,
            bytes=progress.n_bytes,
            files=failure is None and progress.n_attempts > 0,
            failures=failure is not None and not is_abandoned,
            attempts=progress.n_attempts,
        )
        n_came = -1
        if failure is None:
            n_came = _n_bytes_at(transfer.path) if transfer.file.n_bytes < 0 else progress.n_bytes
        waiters: Sequence[Any] = ()
        with self._lock:
            now_s = time.monotonic()
            if is_abandoned:
                self._ledger.abandoned(transfer.key)
            else:
                rests = not isinstance(failure, CredentialsWantedError)
                waiters = self._ledger.finished(transfer.key, now_s, failure=failure, rests=rests)
            self._space.ended(transfer, time.time(), n_came=n_came)
            if waiters and failure is None:
                self._space.used(transfer.key, time.time())
            if (job := self._behind.pop(transfer.key, None)) is not None:
                self._ledger.announced(job, _behind(transfer.key), (), now_s)
            del self._moving[transfer.key]
            self._n_ended += 1
            self._n_ended_bytes += progress.n_bytes
            moves = self._decide()
            _answer(waiters, failure)
        if waiters and failure is not None:
            self._context.access.retry_budgets.heard(transfer.key, transfer.account)
        self._carry_out(moves)

    def _delete(self, plan: SpacePlan) -> None:
        """Without the lock: delete what leaves, so that what takes its place may come."""
        if not plan.leaving:
            return
        for path in plan.leaving:
            with contextlib.suppress(OSError):  # gone already, or not ours to delete: the next scan tells
                os.unlink(path)
        with self._lock:
            self._space.gone(plan)

    def _n_moved_bytes(self) -> int:
        return self._n_ended_bytes + sum(progress.n_bytes for progress in self._moving.values())

    def _n_parts(self, transfer: Transfer) -> int:
        """Over how many connections a file comes that keeps nothing else waiting."""
        n_bytes = transfer.file.n_bytes
        if n_bytes < MIN_BYTES:
            return 1
        return max(1, min(n_bytes // PART_BYTES, self._limits.n_transfers // max(1, self._ledger.n_moving)))

    # --- room

    def _hold_limit(self, job: str) -> None:
        """Have the limit of a job hold from now on."""
        self._scan.run(job)
        with self._lock:
            self._space.limit(job)
            is_kept, self._keeps_room = self._keeps_room, True
        if not is_kept:
            threading.Thread(target=self._keep_room, name="room", daemon=True).start()

    def _keep_room(self) -> None:
        """While a job has a limit, scan the disk and begin what had no room before; time alone makes some, too."""
        while True:
            time.sleep(_ROOM_AGAIN_S)
            with self._lock:
                if not self._space.is_limited:
                    self._keeps_room = False
                    return
                is_due = self._scan.is_due()
            try:
                if is_due:
                    self._scan.run()
                with self._lock:
                    moves = self._decide()
                self._carry_out(moves)
            except Exception:  # the limit must be kept, whatever it was
                log(traceback.format_exc())

    def _no_room(self, transfer: Transfer) -> str:
        """The message for a waiter whose file has no room. Requires the lock."""
        root = transfer.config.root or transfer.key.local
        return f"{transfer.shown} has no room below {root}: {self._space.why_full()}; raise cache_limit"

    def take_room(self, transfer: Transfer, n_bytes: int) -> None:
        """See `RoomMaker`."""
        with self._lock:
            plan = self._space.sized(transfer.key, n_bytes, time.time())
            if plan is None:
                raise LimitError(self._no_room(transfer))
        self._delete(plan)

    def make_room(self, transfer: Transfer) -> bool:
        """See `RoomMaker`: rubbish of dead writers goes, or what nobody needs any more."""
        with self._lock:
            folders = list(self._folders)
        if sum(map(sweep, folders)):
            return True
        seen = self._scan.below({*folders, transfer.config.root or transfer.key.local})
        with self._lock:
            leaving = self._space.free(transfer, seen.files, time.time())
        for path in leaving:
            with contextlib.suppress(OSError):
                os.unlink(path)
        with self._lock:
            self._space.freed(leaving)
        return bool(leaving)


def _answer(waiters: Iterable[Any], failure: StreamingError | None) -> None:
    for waiter in waiters:
        waiter.failure = failure
        waiter.event.set()


def _log_fault(result: Future[None]) -> None:
    """Log a fault of ours, which nobody else would hear of."""
    if (error := result.exception()) is not None:
        log("".join(traceback.format_exception(error)))


def caches_of(hello: Hello) -> JobCaches:
    """What a client's greeting says of its caches."""
    sources = (config.remote.path for config in hello.streams if isinstance(config.remote, Folder))
    return JobCaches(
        hello.cache_limit if hello.cache_limit >= 0 else None,
        frozenset(config.root or config.local for config in hello.streams),
        frozenset(config.local for config in hello.streams),
        frozenset(sources),
    )


def _n_bytes_at(path: str) -> int:
    """The size of a file; 0 if it has gone again."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _behind(key: FileKey) -> str:
    return f"whole:{key.path}"
