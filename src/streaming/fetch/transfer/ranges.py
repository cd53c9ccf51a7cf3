"""Reads bytes of files that are not on disk, for readers that cannot wait for the file or do not want it.

`decide.ranges` says which samples come this way; here their requests are made, shared between readers, and answered.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from streaming.cache.files import is_present, table_name
from streaming.errors import FetchError, StorageError, TransferDamagedError
from streaming.fetch.decide.ranges import FileFacts, JoinedRange, RangeBudget, RangeRules, Verdict, decide, joined
from streaming.fetch.decide.transfers import FileKey, Transfer
from streaming.fetch.transfer.deadline_pool import DeadlineJob, DeadlinePool
from streaming.fetch.transfer.engine import Engine
from streaming.fetch.transfer.stores import TransferProgress
from streaming.fetch.transfer.whole_file import TransferContext, check_size, is_on_disk
from streaming.fetch.wire.protocol import MAX_OBJECT_BYTES, Done, RangeAsk, Reason, Span
from streaming.regular_file import read_regular
from streaming.storage.store import Part

_MAX_VERSIONS: Final = 100_000
_TABLE_LATER_S: Final = 5.0
"""An offset table is placed this much later than its bytes are needed, if there is anything else to do."""


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """One span of one file."""

    transfer: Transfer
    span: Span


@dataclass(frozen=True, slots=True)
class _RangeFetch:
    """One request for a file; `joined.members` are places in `numbers`, the numbers of the spans that it serves."""

    transfer: Transfer
    numbers: list[int]
    joined: JoinedRange


@dataclass(frozen=True, slots=True)
class _Flight:
    """A request under way, which all who need the same bytes share."""

    job: DeadlineJob[bytes | memoryview]
    progress: TransferProgress


@dataclass(slots=True)
class _Granted:
    """What was decided on a batch of spans."""

    fetches: list[_RangeFetch] = field(default_factory=list)
    is_late: bool = False  # within the budget for late shards


class Ranges:
    """Owns the budget of ranges and their connections. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        context: TransferContext,
        connections: DeadlinePool,
        rules: RangeRules,
    ) -> None:
        self._engine, self._context, self._connections = engine, context, connections
        self._rules = rules
        self._lock = threading.Lock()
        self._budget: RangeBudget[FileKey] = RangeBudget(rules, time.monotonic())
        self._versions: OrderedDict[FileKey, str | None] = OrderedDict()
        self._flights: dict[tuple[Transfer, int, int], _Flight] = {}

    def read(self, job: str, ask: RangeAsk, wanted: Sequence[RangeRequest], progress: TransferProgress) -> Done:
        """Read the spans that are granted; see `ReadRanges` for the answer. The span that is due first goes first.

        Raises what the store answers when its attempts are used up.
        """
        due_at_s = time.monotonic() + ask.due_s
        got = {number: table for number, each in enumerate(wanted) if (table := _kept_table(each)) is not None}
        granted = self._granted(ask, wanted, got)
        with self._lock:
            wait_s = self._budget.spend(len(granted.fetches), time.monotonic(), reason=ask.reason)
        if granted.fetches and wait_s is not None:
            _pause(wait_s, progress)
            # Whole files yield only while an epoch begins: if they yielded all the time they would never come.
            gate = self._context.bulk_gate
            with gate.urgent() if granted.is_late else contextlib.nullcontext():
                fetched = self._fetched(wanted, granted.fetches, ask.reason, due_at_s, progress)
            self._note(job, granted.fetches, ask.reason)
            for number, data in fetched.items():
                if wanted[number].span.keep:  # a reader that waits for its bytes is not to wait for that
                    keep = partial(self._keep, wanted[number].transfer.key, data)
                    self._connections.submit(due_at_s + _TABLE_LATER_S, keep)
            got |= fetched
        payload = b"".join(got[number] for number in sorted(got))
        sizes = [len(got[number]) if number in got else -1 for number in range(len(wanted))]
        return Done({"sizes": sizes, "is_late": granted.is_late}, payload)

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way and every offset table has been placed."""
        return self._connections.is_idle

    def _granted(self, ask: RangeAsk, wanted: Sequence[RangeRequest], got: Container[int]) -> _Granted:
        """Decide on each file. Raises FetchError for too many bytes, StorageError for a compressed file."""
        n_bytes = sum(each.span.end - each.span.begin for each in wanted)
        if n_bytes > MAX_OBJECT_BYTES:
            raise FetchError(f"{n_bytes:,} bytes were asked for by range at once; 1 GiB is the limit")
        by_file: dict[Transfer, list[int]] = {}
        for number, each in enumerate(wanted):
            if number not in got:
                by_file.setdefault(each.transfer, []).append(number)
        granted = _Granted()
        store_bytes_per_s = self._engine.bytes_per_s() if ask.reason is Reason.AHEAD else None
        for transfer, numbers in by_file.items():
            if transfer.file.zip_name is not None:
                raise StorageError(f"{transfer.shown} is compressed: it cannot be read by parts")
            facts = FileFacts(is_on_disk(transfer), self._engine.left_s(transfer))
            verdict = decide(ask, facts, store_bytes_per_s, self._rules)
            if verdict not in (Verdict.GRANT, Verdict.BRIDGE):
                continue
            granted.is_late |= verdict is Verdict.GRANT and ask.reason is Reason.AHEAD
            spans = [(wanted[number].span.begin, wanted[number].span.end) for number in numbers]
            granted.fetches += [_RangeFetch(transfer, numbers, each) for each in joined(spans, self._rules)]
        return granted

    def _fetched(
        self,
        wanted: Sequence[RangeRequest],
        fetches: Sequence[_RangeFetch],
        reason: Reason,
        due_at_s: float,
        progress: TransferProgress,
    ) -> dict[int, memoryview]:
        """The bytes of all spans that these requests serve, fetched at the same time."""
        flights = [(each, self._flight(each, reason, due_at_s)) for each in fetches]
        for _, flight in flights:
            progress.include(flight.progress)
        fetched = {}
        for each, flight in flights:
            data, first = memoryview(flight.job.result.result()), each.joined.begin
            for member in each.joined.members:
                span = wanted[each.numbers[member]].span
                fetched[each.numbers[member]] = data[span.begin - first : span.end - first]
        return fetched

    def _flight(self, fetch: _RangeFetch, reason: Reason, due_at_s: float) -> _Flight:
        """The request under way; one that another reader of this account began is shared."""
        key = fetch.transfer, fetch.joined.begin, fetch.joined.end
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                self._connections.hasten(flight.job, due_at_s)
                return flight
            progress = TransferProgress()
            run = partial(self._fetch, fetch.transfer, fetch.joined, reason, progress)
            flight = self._flights[key] = _Flight(self._connections.submit(due_at_s, run), progress)
        flight.job.result.add_done_callback(lambda _: self._flights.pop(key, None))
        return flight

    def _fetch(
        self, transfer: Transfer, request: JoinedRange, reason: Reason, progress: TransferProgress
    ) -> bytes | memoryview:
        access, key = self._context.access, transfer.key
        store, attempts = access.budgeted(transfer, progress)

        def attempt() -> Part:
            attempts.began()
            part = store.get_range(key.name, request.begin, request.end, version=self._versions.get(key))
            if key not in self._versions:
                self._context.watch.check(key, part.facts, store=access.paced(key.remote, transfer.account))
            check_size(transfer, part.facts.n_bytes, transfer.file.n_bytes, key.name)
            return part

        try:
            part = attempts.repeat(attempt)
        except TransferDamagedError:
            with self._lock:
                was = self._versions.pop(key, None)
            if was is not None:  # perhaps the object was replaced: the next request gets the new one
                access.retry_budgets.forget(key, transfer.account)
            raise
        except StorageError:
            if reason is not Reason.AHEAD:  # of those the reader suppresses the error, and waits for the file
                access.retry_budgets.heard(key, transfer.account)
            raise
        progress.n_bytes += len(part.data)
        with self._lock:
            known = self._versions.setdefault(key, part.facts.version)
            if known != part.facts.version:  # two first requests at the same time, and the object replaced in between
                del self._versions[key]
                raise TransferDamagedError(
                    f"{transfer.shown} was replaced while it was read: version {part.facts.version} came, "
                    f"{known} before"
                )
            while len(self._versions) > _MAX_VERSIONS:
                self._versions.popitem(last=False)
        numbers = {"bytes": len(part.data), "range_bytes": len(part.data), f"ranges_{reason.value}": 1}
        access.counters.add(key.remote, **numbers)
        return part.data

    def _note(self, job: str, fetches: Sequence[_RangeFetch], reason: Reason) -> None:
        """Have those files fetched whole of which much has been asked for."""
        n_ranges: Counter[Transfer] = Counter()
        n_bytes: Counter[Transfer] = Counter()
        for each in fetches:
            n_ranges[each.transfer] += 1
            n_bytes[each.transfer] += each.joined.end - each.joined.begin
        for transfer, n in n_ranges.items():
            with self._lock:
                is_much = self._budget.is_much(transfer.key, transfer.file.n_bytes, n_bytes[transfer], n, reason=reason)
            if is_much:
                self._engine.want_behind(job, transfer)

    def _keep(self, key: FileKey, table: memoryview) -> None:
        """Place an offset table beside its file, so that nobody on this machine asks for it again."""
        name = table_name(key.name)
        path = os.path.join(key.local, name)
        if is_present(path, len(table)):
            return
        # Without room or the right to write it is not kept; the reader has it all the same.
        with contextlib.suppress(StorageError), self._engine.room_for_table(path, len(table)) as has_room:
            if has_room:
                with self._context.temporaries.begin(key.local, name, n_bytes=len(table)) as kept:
                    kept.write(table)
                    kept.place()


def _pause(seconds: float, progress: TransferProgress) -> None:
    """Wait for the budget, moving the progress on so that the client does not time out."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 1.0))
        progress.n_attempts += 1


def _kept_table(wanted: RangeRequest) -> memoryview | None:
    """An offset table that lies beside its file by now, though it did not when it was asked for."""
    if not wanted.span.keep:
        return None
    try:
        path = os.path.join(wanted.transfer.key.local, table_name(wanted.transfer.key.name))
        table = read_regular(path, wanted.span.end + 1)
    except OSError:
        return None
    return memoryview(table) if len(table) == wanted.span.end else None
