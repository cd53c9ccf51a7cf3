"""One worker's share of an epoch, read in order: planned in segments, announced, fetched, yielded.

What a reader does when something fails; anything else is a bug:

1. It yields the planned samples in their order, or raises; it leaves none out and makes none up. After an error the
   iteration has ended, and the next `iter()` is the next epoch. An error may come up to two segments before the sample
   that it concerns, since samples are asked for ahead.
2. *The fetcher dies.* Shards that are open and samples that have come are read on. A wait starts another fetcher, tells
   it the lists of its readers and repeats the request; only the fifth death within one request is an error, FetchError
   with the end of the log.
3. *The store fails.* A shard that cannot be had raises what the store answered when its attempts were used up. Samples
   that would only have come earlier by range (`AHEAD`) raise no error of the store: their shard is waited for instead.
   Samples that have no shard to wait for (`FEW`, `NO_ROOM`) raise it.
4. *A shard vanishes* from the cache. A reader that has it open reads on; another has it fetched again. If it vanishes
   again and again, that is a FetchError, ShardDamagedError or DeadlineError, after about 120 s at the latest.
5. *A shard is damaged.* A fetched file of the wrong size counts as missing; one with a wrong offset table is fetched
   again, once. Then, and for a source at once, it is a ShardDamagedError. A record that came by range and does not
   decode is read from the whole shard. A record of an open shard that does not decode raises, naming shard and sample;
   the file stays.
6. *The cache has no room, or cannot be written.* Samples that can be read by parts come by range, with one warning for
   each folder and reason. For other shards a reader closes what it holds under a limit and waits for room: NoRoomError
   after 120 s. Where the cache cannot be written they raise CacheWriteError at once.
7. *Nothing moves.* Every wait has a deadline, which counts from the last progress: DeadlineError says what was waited
   for.
8. *The dataset is closed.* A wait under way raises FetchError; later the first sample that is not at hand raises
   ClosedError, and nothing is sent. Workers of other processes read on.
9. *The reader is dropped* in mid-epoch. What it began is not taken back: its list stays with the fetcher until the
   reader's next list or the end of the job, and its shards stay open until others need the room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.order import EpochOrder, EpochPlan, Topology, WorkerReader, first_uses, rows_drawn, sparsely_read
from streaming.read.epoch.early_ranges import EarlyRanges, TrainingRate, WorkerTurn
from streaming.read.epoch.read_ahead import Horizon, ListRules, Planning, ReadAhead, Segment, segments
from streaming.read.shards.pool import OpenShard
from streaming.read.shards.range_reader import PartialShard, PartialShards
from streaming.read.shards.sample_store import SampleStore
from streaming.read.streams.cache_limit import CacheRoom

GetSample = Callable[[int], Any]
"""The user's class makes a sample of this number."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker reads of an epoch, and how far ahead."""

    plan: EpochPlan
    rank: int
    worker: int
    n_workers: int
    next_order: Callable[[], EpochOrder]
    """Gives the order of the epoch that follows."""
    predownload: int | None
    """Samples that are planned and announced ahead; None for as many as are useful."""
    room: CacheRoom | None
    """The room in the cache; None if it has no limit."""
    is_counted: bool
    """Whether another process counts what training waits for while this one reads."""

    @property
    def node(self) -> int:
        """The machine of this rank."""
        return self.plan.topology.node_of(self.rank)


def read_share(store: SampleStore, share: Share, get: GetSample | None) -> Iterator[Any]:
    """The samples of a share, in order; `get` makes each where the user's class does so, else its shard does."""
    plan, batch_size = share.plan, share.plan.batch_size
    reader = WorkerReader(plan, share.rank, share.worker, share.n_workers)
    then = share.predownload or 2 * max(64, 8 * batch_size)
    if store.is_in_place:
        planned = segments(reader, store.catalog, store.pool, None, Planning(then, then))
        return EpochReader(store, get).samples(planned)
    rules, sparse = _rules(share), _sparse(store, plan.order, plan.topology)
    if share.room is not None:  # a list is renewed when more is planned, and an old list keeps used-up shards
        then = min(then, max(batch_size, rules.renew_after // (share.n_workers * plan.topology.n_groups)))
    horizon = None if share.predownload else shards_ahead(store, share)
    name = f"{share.rank}.{share.worker}"
    ahead = ReadAhead(store.client, store.files, name, horizon, rules, sparse=sparse)
    planning = Planning(batch_size, then, is_limited=share.room is not None)
    planned = segments(reader, store.catalog, store.pool, ahead, planning)
    turn = WorkerTurn(share.worker, share.n_workers, batch_size)
    rate = TrainingRate(store.counters, batch_size, plan.topology.ranks_per_node, is_counted=share.is_counted)
    early = EarlyRanges(store.ranges, store.lookup, sparse, turn, rate)
    keeps_one = share.room is not None and share.room.is_tight
    return EpochReader(store, get, early, ahead, keeps_one=keeps_one).samples(planned)


def shown_at_start(samples: Iterator[Any], store: SampleStore, share: Share) -> Iterator[Any]:
    """The samples of a share that begins a run, unchanged; a terminal shows how far the wait for the first batch is."""
    plan = share.plan

    def shards() -> list[int]:
        reader = WorkerReader(plan, share.rank, share.worker, share.n_workers)
        first, _ = store.catalog.locate(reader.next_ids(plan.batch_size)[0])
        found: list[int] = np.unique(first).tolist()
        return found

    return store.first_shown(samples, plan.batch_size, shards)


class EpochReader:
    """Reads segments of an epoch, one sample after the other. For one thread."""

    def __init__(
        self,
        store: SampleStore,
        get: GetSample | None,
        early: EarlyRanges | None = None,
        ahead: ReadAhead | None = None,
        *,
        keeps_one: bool = False,
    ) -> None:
        """`get`: see `read_share`. `early` and `ahead`: None where nothing needs fetching.

        `keeps_one`: the cache is so small that no shard stays open when another is needed.
        """
        self._pool, self._lookup, self._stopwatch = store.pool, store.lookup, store.stopwatch
        self._get = get
        self._early, self._ahead = early, ahead
        self._keeps_one = keeps_one

    def samples(self, segments: Iterator[Segment]) -> Iterator[Any]:
        """The samples of these segments, in order."""
        early, stopwatch = self._early, self._stopwatch()
        parts = ((segment, {}) for segment in segments) if early is None else early.segments(segments)
        for segment, partials in parts:
            if self._get is None:
                yield from self._read(segment, partials)
            elif segment.is_complete:
                yield from map(self._get, segment.ids.tolist())
            else:
                yield from self._made(segment, partials, self._get)
            if self._keeps_one:
                self._pool.keep_only((), at_once=True)
            elif segment.done:
                self._pool.drop(segment.done)
            stopwatch.ended(segment.shards)

    def _read(self, segment: Segment, partials: PartialShards) -> Iterator[Any]:
        open_shards = self._pool.open_shards
        for shard, row in zip(segment.shards.tolist(), segment.rows.tolist()):
            opened = open_shards.get(shard)
            if opened is None:
                opened = self._find(shard, row, segment, partials)
            yield opened.sample(row)

    def _made(self, segment: Segment, partials: PartialShards, get: GetSample) -> Iterator[Any]:
        """Samples that the user's class makes. It reads by number, so what it will ask for is fetched before."""
        for sample_id, shard, row in zip(segment.ids.tolist(), segment.shards.tolist(), segment.rows.tolist()):
            if shard not in self._pool.open_shards:
                self._find(shard, row, segment, partials)
            with self._lookup.using(partials):
                sample = get(sample_id)
            yield sample

    def _find(self, shard: int, row: int, segment: Segment, partials: PartialShards) -> OpenShard:
        """What has this sample: the part of its shard that has come, else the shard, waited for."""
        held = partials.get(shard)
        if held is not None and row in held:
            return held
        if self._keeps_one:
            self._pool.keep_only((), at_once=True)
        rows = dict.fromkeys([row, *segment.rows[segment.shards == shard].tolist()])
        opened = self._lookup.wait(shard, list(rows), alone=self._keeps_one, let_go=self._let_go)
        if isinstance(opened, PartialShard):  # there was no room for the shard
            partials[shard] = opened
        return opened

    def _let_go(self) -> None:
        """Under a limit, give up what this reader keeps in the cache, since there is no room."""
        if self._ahead is not None and self._ahead.is_limited:
            self._pool.keep_only((), at_once=True)
            self._ahead.let_go()


# --- what a node needs


def shards_ahead(store: SampleStore, share: Share) -> Horizon:
    """The shards that a node needs from a position on, and in the next epoch, for read-ahead; not the sparse ones."""
    plan, node = share.plan, share.node
    is_limited = share.room is not None
    sparse = _sparse(store, plan.order, plan.topology)
    returning = plan.returning_shards(node) if is_limited else np.zeros(0, np.int64)
    following: list[list[int]] = []  # of the next epoch, looked for only when the end of this one is in reach

    def horizon(position: int, limit: int) -> tuple[list[int], list[int]]:
        enough = limit if sparse is None and not is_limited else store.catalog.n_shards
        needed = _without(sparse, plan.first_uses(node, position, enough, with_spent=not is_limited))
        if len(needed) < limit and not following:
            following.append(first_shards(share.next_order(), plan.topology, share.rank, 0, store))
        again = needed[limit:][np.isin(needed[limit:], returning)]
        shards = np.concatenate([needed[:limit], again]).tolist()
        return shards, following[0][: max(0, limit - len(needed))] if following else []

    return horizon


def first_shards(order: EpochOrder, topology: Topology, rank: int, position: int, store: SampleStore) -> list[int]:
    """The shards that a rank's node needs first from a position on, for any batch size; not the sparse ones."""
    shards = first_uses(order, topology, topology.node_of(rank), position, order.catalog.n_shards)
    wanted: list[int] = _without(_sparse(store, order, topology), shards).tolist()
    return wanted


def transfer_bytes(store: SampleStore, plan: EpochPlan) -> NDArray[np.int64]:
    """The bytes to fetch for each shard in this epoch, of a sparse one for its samples alone: int64 (shard,)."""
    n_bytes = store.transfer_bytes()
    sparse = _sparse(store, plan.order, plan.topology)
    if sparse is not None:
        shards = np.flatnonzero(sparse)
        n_bytes[shards] = rows_drawn(plan.order)[shards] * store.files.mean_record_bytes(shards)
    return n_bytes


def _rules(share: Share) -> ListRules:
    plan, room = share.plan, share.room
    # A node reads its own canonical nodes alone, and so needs only their shards.
    n_apart = max(1, min(plan.topology.n_nodes, plan.order.n_canonical_nodes))
    per_shard = plan.order.n_samples * n_apart / plan.order.catalog.n_shards
    if room is None:
        return ListRules.unlimited(per_shard)
    return ListRules.limited(room.shards, room.needed.shards, per_shard)


def _sparse(store: SampleStore, order: EpochOrder, topology: Topology) -> NDArray[np.bool_] | None:
    """The sparse shards, of which so little is needed that their samples come by range: bool (shard,). None if none."""
    rules = store.client.rules
    sparse = sparsely_read(order, topology, max_share=rules.sparse_share, max_rows=rules.sparse_rows)
    return None if sparse is None else sparse & store.files.by_parts


def _without(sparse: NDArray[np.bool_] | None, shards: NDArray[np.int64]) -> NDArray[np.int64]:
    return shards if sparse is None else shards[~sparse[shards]]
