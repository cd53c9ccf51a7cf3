"""A machine in virtual time: readers that walk shuffled orders, one fetcher's decisions, a store, a disk.

The decisions are the real ones (TransferLedger, SpaceBudget and its ledger of the cache, RangeBudget); only threads,
bytes and clocks are not. A run of thousands of shards takes a moment, and is the same each time.
"""

from __future__ import annotations

import functools
import heapq
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from streaming.fetch.decide.ranges import RangeBudget, RangeRules
from streaming.fetch.decide.space import SpaceBudget
from streaming.fetch.decide.transfers import FetchLimits, FileKey, Transfer, TransferLedger
from streaming.fetch.transfer.engine import caches_of
from streaming.fetch.wire.protocol import FileRequest, Hello, Reason
from support.fetching import stream_config

_CONFIG = stream_config("s3://bkt/d", "/cache")
_JOB = "job"
_AGAIN_S = 0.1  # until a reader retries a file that had no room and cannot be read by range


@dataclass(frozen=True)
class Setup:
    """A machine and what it reads. Sizes are in bytes."""

    sizes: Sequence[int]
    limit_bytes: int | None
    latency_s: float = 0.05
    bytes_per_s: float = 1000.0  # per connection
    total_bytes_per_s: float = 1e9  # for all connections together
    n_transfers: int = 16
    by_range: bool = True  # read a sample by range if its shard has no room
    sample_s: float = 0.01
    n_planned: int = 4  # samples ahead of a reader whose shards are leased
    n_announced: int = 1 << 30  # shards
    renew_after: int = 1  # samples


@dataclass
class Outcome:
    """What a run has counted."""

    n_fetched: Counter[int] = field(default_factory=Counter)  # by shard
    n_ranges: int = 0
    n_finished: int = 0
    n_stalls: int = 0
    most_bytes: int = 0
    took_s: float = 0.0


class Machine:
    """Runs readers over one fetcher's decisions."""

    def __init__(self, setup: Setup, orders: Sequence[Sequence[int]]) -> None:
        self.setup, self.outcome = setup, Outcome()
        self.ledger: TransferLedger[Transfer] = TransferLedger(FetchLimits(n_transfers=setup.n_transfers), 0.0)
        self.space = SpaceBudget(self.ledger)
        self.ranges: RangeBudget[FileKey] = RangeBudget(RangeRules(), 0.0)
        self.tasks = [Transfer.of(FileRequest(0, str(i), size), _CONFIG) for i, size in enumerate(setup.sizes)]
        self.disk: dict[str, int] = {}
        self.moving: dict[Transfer, int] = {}
        self.now_s = self._link_free_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._n_events = 0
        self.readers = [_Reader(self, f"r{i}", order) for i, order in enumerate(orders)]

    def run(self, deadline_s: float = 1e6) -> Outcome:
        """Run until all readers have finished, or until `deadline_s` of virtual time."""
        limit = -1 if self.setup.limit_bytes is None else self.setup.limit_bytes
        hello = Hello(2, "", _JOB, (_CONFIG,), limit)
        for _ in self.readers:
            self.ledger.opened(_JOB)
        if self.space.admit(_JOB, caches_of(hello), 0.0):
            self.space.limit(_JOB)
        for reader in self.readers:
            self.after(0.0, reader.go_on)
        while self._events and self.outcome.n_finished < len(self.readers) and self.now_s < deadline_s:
            self.step()
        self.outcome.took_s = self.now_s
        return self.outcome

    def step(self) -> None:
        """Run the next event."""
        self.now_s, _, event = heapq.heappop(self._events)
        event()

    def end(self) -> None:
        """Close all connections, and let the job expire."""
        for _ in self.readers:
            self.ledger.closed(_JOB, self.now_s)
        for job in self.ledger.passed(self.now_s + 100):
            self.space.lift(job, self.now_s)
        self.begin()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Schedule an event."""
        self._n_events += 1
        heapq.heappush(self._events, (self.now_s + seconds, self._n_events, event))

    def begin(self) -> None:
        """Start what may start, as the engine does after each event."""
        begun = self.space.begin(self.now_s)
        for path in begun.leaving:
            del self.disk[path]
        self.space.gone(begun)
        for task in begun.transfers:
            assert task not in self.moving
            self.moving[task] = task.file.n_bytes
            self.outcome.n_fetched[int(task.key.name)] += 1
            self.after(self._seconds(task.file.n_bytes), functools.partial(self._came, task))
        n_bytes = sum(self.disk.values()) + sum(self.moving.values())
        self.outcome.most_bytes = max(self.outcome.most_bytes, n_bytes)
        for _, waiters in begun.without_room:
            self._wake(waiters, has_come=False)

    def _seconds(self, n_bytes: int) -> float:
        """How long a transfer takes that begins now. The link carries transfers one after the other."""
        first_s = self.now_s + self.setup.latency_s
        self._link_free_s = max(self._link_free_s, first_s) + n_bytes / self.setup.total_bytes_per_s
        return max(self._link_free_s, first_s + n_bytes / self.setup.bytes_per_s) - self.now_s

    def _came(self, task: Transfer) -> None:
        self.disk[task.path] = self.moving.pop(task)
        waiters = self.ledger.finished(task.key, self.now_s)
        self.space.ended(task, self.now_s, n_came=task.file.n_bytes)
        if waiters:
            self.space.used(task.key, self.now_s)
        self._wake(waiters, has_come=True)
        self.begin()

    def _wake(self, waiters: Sequence[Any], *, has_come: bool) -> None:
        for reader in waiters:
            self.after(0.0, reader.go_on if has_come else reader.find_no_room)


class _Reader:
    """One worker, which announces and leases the shards ahead, and reads one sample after the other."""

    def __init__(self, machine: Machine, name: str, order: Sequence[int]) -> None:
        self.machine, self.name, self.order = machine, name, order
        self.at = 0
        self._renew_at = 0
        self._held: set[int] = set()
        self._waited_for: Transfer | None = None

    def go_on(self) -> None:
        machine = self.machine
        if self._waited_for is not None:
            machine.space.opened(self._waited_for.key)
            self._waited_for = None
        if self.at == len(self.order):
            machine.outcome.n_finished += 1
            machine.ledger.announced(_JOB, self.name, (), machine.now_s)
            machine.begin()
            return
        self._announce()
        task = machine.tasks[self.order[self.at]]
        if task.path in machine.disk:
            self._read(machine.setup.sample_s)
            return
        machine.outcome.n_stalls += 1
        self._waited_for = task
        machine.ledger.subscribe(self, task, machine.now_s)
        machine.begin()

    def find_no_room(self) -> None:
        """Read the sample by range, or try again later."""
        machine, self._waited_for = self.machine, None
        if machine.setup.by_range:
            machine.outcome.n_ranges += 1
            wait_s = machine.ranges.spend(1, machine.now_s, reason=Reason.NO_ROOM)
            assert wait_s is not None
            self._read(wait_s + machine.setup.latency_s)
        else:
            machine.after(_AGAIN_S, self.go_on)

    def _read(self, seconds: float) -> None:
        self.at += 1
        self.machine.after(seconds, self.go_on)

    def _announce(self) -> None:
        setup, machine = self.machine.setup, self.machine
        planned = dict.fromkeys(self.order[self.at : self.at + setup.n_planned])
        if self.at < self._renew_at and self._held.issuperset(planned):
            return
        self._renew_at = self.at + setup.renew_after
        self._held = set(planned)
        ahead = list(dict.fromkeys(self.order[self.at :]))[: setup.n_announced]
        files = [(machine.tasks[i], machine.tasks[i].path in machine.disk) for i in ahead]
        held = [machine.tasks[i] for i in planned]
        for task in held:
            machine.space.held(task.key, machine.now_s)
        machine.ledger.announced(_JOB, self.name, files, machine.now_s, held=[task.key for task in held])
        machine.begin()


def shuffled(n_shards: int, n_samples: int, n_mixed: float, rng: random.Random) -> list[int]:
    """The shard of each sample of an epoch. The samples of one shard spread over the length of `n_mixed` shards."""
    shards = list(range(n_shards))
    rng.shuffle(shards)
    placed = [
        (place + (rng.random() - 0.5) * n_mixed, shard) for place, shard in enumerate(shards) for _ in range(n_samples)
    ]
    return [shard for _, shard in sorted(placed)]


def fetches_of_lru(order: Sequence[int], n_shards: int) -> int:
    """Fetches for this order by a cache of `n_shards` that evicts the least recently used shard."""
    there: OrderedDict[int, None] = OrderedDict()
    n_fetched = 0
    for shard in order:
        if shard in there:
            there.move_to_end(shard)
            continue
        n_fetched += 1
        there[shard] = None
        if len(there) > n_shards:
            there.popitem(last=False)
    return n_fetched


def fetches_of_best(order: Sequence[int], n_shards: int) -> int:
    """Fetches for this order by a cache that evicts the shard needed last, which is the minimum."""
    next_use = [len(order)] * len(order)
    seen: dict[int, int] = {}
    for at in range(len(order) - 1, -1, -1):
        next_use[at] = seen.get(order[at], len(order) + order[at])
        seen[order[at]] = at
    there: dict[int, int] = {}
    n_fetched = 0
    for at, shard in enumerate(order):
        if shard not in there:
            n_fetched += 1
            if len(there) == n_shards:
                del there[max(there, key=lambda each: there[each])]
        there[shard] = next_use[at]
    return n_fetched
