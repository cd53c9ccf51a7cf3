"""Bytes of files that are not on disk, for those who cannot wait for the file or do not want it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from streaming.cache.files import is_present, table_name
from streaming.errors import FetchError, StorageError, TransferDamagedError
from streaming.fetch.attempts import attempted
from streaming.fetch.engine import Engine
from streaming.fetch.protocol import MAX_OBJECT_BYTES, Done, Reason, Span
from streaming.fetch.range_policy import Joined, RangeLimits, RangePolicy, joined
from streaming.fetch.tally import Tally
from streaming.fetch.task import FileTask, Moved
from streaming.fetch.transfer import Means, check_size
from streaming.fetch.turns import Turn, Turns
from streaming.storage.store import Part

_MAX_VERSIONS: Final = 100_000
_IN_TIME_S: Final = 0.05  # a file that comes this late is in time
_CLEARLY: Final = 1.5
_KEPT_LATER_S: Final = 5.0  # than what is read is needed, if anything else is to be done
_AHEAD_WAITS_S: Final = 5.0  # for the budget: less than a shard would take


@dataclass(frozen=True, slots=True)
class Wanted:
    """One span of one file."""

    task: FileTask
    span: Span


@dataclass(frozen=True, slots=True)
class _Request:
    """One request for a file; `joined.members` are places in `numbers`, which are those of the spans that it serves."""

    task: FileTask
    numbers: list[int]
    joined: Joined


class Ranges:
    """Owns the budget of ranges and their connections."""

    def __init__(self, engine: Engine, means: Means, tally: Tally, connections: Turns, limits: RangeLimits) -> None:
        self._engine, self._means, self._tally, self._connections = engine, means, tally, connections
        self._lock = threading.Lock()
        self._policy: RangePolicy[FileTask] = RangePolicy(limits, time.monotonic())
        self._versions: OrderedDict[FileTask, str | None] = OrderedDict()
        self._flying: dict[tuple[FileTask, int, int], Turn[bytes]] = {}

    def read(
        self, job: str, wanted: Sequence[Wanted], reason: Reason, due_s: float, demand: float, moved: Moved
    ) -> Done:
        """The bytes of all that is granted, one after the other; the value says how many each got, -1 for none.

        `due_s`: in how many seconds they are needed; what is due first goes first. `demand`: see `ReadRanges`. Raises
        what the store answers when its attempts are used up.
        """
        due_at_s = time.monotonic() + due_s
        if demand and not self._outruns(demand):
            return Done([-1] * len(wanted))
        got = {number: table for number, each in enumerate(wanted) if (table := _kept_table(each)) is not None}
        requests = self._requests(wanted, got, reason, due_s)
        with self._lock:
            longest_s = _AHEAD_WAITS_S if reason is Reason.AHEAD else float("inf")
            wait_s = self._policy.spend(len(requests), time.monotonic(), longest_s=longest_s)
        if requests and wait_s is not None:
            _pause(wait_s, moved)
            # Only while an epoch begins: whole files that gave way all the time would never come.
            is_hurried = reason is Reason.AHEAD and not demand
            with self._means.courtesy.hurry() if is_hurried else contextlib.nullcontext():
                fetched = self._fetched(wanted, requests, reason, due_at_s, moved)
            self._note(job, requests, reason)
            for number, data in fetched.items():
                if wanted[number].span.keep:  # who waits for its bytes is not to wait for that
                    self._connections.submit(due_at_s + _KEPT_LATER_S, partial(self._keep, wanted[number].task, data))
            got |= fetched
        payload = b"".join(got[number] for number in sorted(got))
        return Done([len(got[number]) if number in got else -1 for number in range(len(wanted))], payload)

    def _outruns(self, demand: float) -> bool:
        """Whether files come clearly faster than they are consumed, so that it is worth while to bridge the time."""
        speed = self._engine.bytes_per_s()
        return speed is not None and speed >= _CLEARLY * demand

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, and all is kept that was to be."""
        return self._connections.is_idle

    def _requests(self, wanted: Sequence[Wanted], got: Container[int], reason: Reason, due_s: float) -> list[_Request]:
        by_file: dict[FileTask, list[int]] = {}
        for number, each in enumerate(wanted):
            if number not in got:
                by_file.setdefault(each.task, []).append(number)
        n_bytes = sum(each.span.end - each.span.begin for each in wanted)
        if n_bytes > MAX_OBJECT_BYTES:
            raise FetchError(f"{n_bytes:,} bytes were asked for by range at once; 1 GiB is the limit")
        requests = []
        for task, numbers in by_file.items():
            if self._is_to_be_asked(task, reason, due_s):
                spans = [(wanted[number].span.begin, wanted[number].span.end) for number in numbers]
                requests += [_Request(task, numbers, request) for request in joined(spans, self._policy.limits)]
        return requests

    def _fetched(
        self, wanted: Sequence[Wanted], requests: Sequence[_Request], reason: Reason, due_at_s: float, moved: Moved
    ) -> dict[int, memoryview]:
        """The bytes of all spans that these requests serve, fetched at the same time."""
        running = [(request, self._begun(request, reason, due_at_s, moved)) for request in requests]
        fetched = {}
        for request, part in running:
            data, first = memoryview(part.result.result()), request.joined.begin
            for member in request.joined.members:
                span = wanted[request.numbers[member]].span
                fetched[request.numbers[member]] = data[span.begin - first : span.end - first]
        return fetched

    def _begun(self, request: _Request, reason: Reason, due_at_s: float, moved: Moved) -> Turn[bytes]:
        """The request under way; one that others have under way is theirs and ours."""
        key = request.task, request.joined.begin, request.joined.end
        with self._lock:
            flying = self._flying.get(key)
            if flying is not None:
                self._connections.hasten(flying, due_at_s)
                return flying
            run = partial(self._fetch, request.task, request.joined, reason, moved)
            flying = self._flying[key] = self._connections.submit(due_at_s, run)
            flying.result.add_done_callback(lambda _: self._flying.pop(key, None))
        return flying

    def _is_to_be_asked(self, task: FileTask, reason: Reason, due_s: float) -> bool:
        if task.need.zip_name is not None:
            raise StorageError(f"{task.shown} is compressed: it cannot be read by parts")
        if task.is_done():
            return False
        return reason is not Reason.AHEAD or self._engine.left_s(task) > max(0.0, due_s) + _IN_TIME_S

    def _fetch(self, task: FileTask, request: Joined, reason: Reason, moved: Moved) -> bytes:
        lane = self._means.lanes.lane(task.remote)

        def attempt(_: int) -> Part:
            moved.n_attempts += 1
            with self._means.store(task.config) as store:
                part = store.get_range(task.name, request.begin, request.end, version=self._versions.get(task))
            check_size(task, part.facts.n_bytes, task.need.n_bytes, task.name)
            return part

        try:
            part = attempted(task.shown, task.patience, lane, attempt, rng=self._means.rng)
        except TransferDamagedError:
            with self._lock:
                self._versions.pop(task, None)  # perhaps the object was replaced: who asks again gets the new one
            raise
        moved.n_bytes += len(part.data)
        with self._lock:
            known = self._versions.setdefault(task, part.facts.version)
            if known != part.facts.version:  # two first requests at the same time, and the object replaced in between
                del self._versions[task]
                raise TransferDamagedError(
                    f"{task.shown} was replaced while it was read: version {part.facts.version} came, {known} before"
                )
            while len(self._versions) > _MAX_VERSIONS:
                self._versions.popitem(last=False)
        self._tally.add(task.remote, bytes=len(part.data), range_bytes=len(part.data), **{f"ranges_{reason.value}": 1})
        return part.data

    def _note(self, job: str, requests: Sequence[_Request], reason: Reason) -> None:
        """Have those files fetched whole of which much has been asked for."""
        if reason not in (Reason.RANDOM, Reason.FEW):
            return
        asked: Counter[FileTask] = Counter()
        n_bytes: Counter[FileTask] = Counter()
        for request in requests:
            asked[request.task] += 1
            n_bytes[request.task] += request.joined.end - request.joined.begin
        for task, n_ranges in asked.items():
            with self._lock:
                is_much = self._policy.asked(task, task.need.n_bytes, n_bytes[task], n_ranges)
            if is_much:
                self._engine.want_behind(job, task)

    def _keep(self, task: FileTask, table: memoryview) -> None:
        """Place an offset table beside its file, so that nobody on this machine asks for it again."""
        name = table_name(task.name)
        path = os.path.join(task.local, name)
        if is_present(path, len(table)):
            return
        # Without room or the right to write there is none: the reader has the table all the same.
        with contextlib.suppress(StorageError), self._engine.room_for_table(path, len(table)) as has_room:
            if has_room:
                with self._means.temporaries.begin(task.local, name, n_bytes=len(table)) as kept:
                    kept.write(table)
                    kept.place()


def _pause(seconds: float, moved: Moved) -> None:
    """Wait for the budget: that is no standing still, which whoever waits for the bytes gives up on."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 1.0))
        moved.n_attempts += 1


def _kept_table(wanted: Wanted) -> memoryview | None:
    """An offset table that lies beside its file by now, though it did not when it was asked for."""
    if not wanted.span.keep:
        return None
    try:
        with open(os.path.join(wanted.task.local, table_name(wanted.task.name)), "rb") as file:
            table = file.read(wanted.span.end + 1)
    except OSError:
        return None
    return memoryview(table) if len(table) == wanted.span.end else None
