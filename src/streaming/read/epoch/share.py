"""One worker's share of an epoch, read: its samples planned, announced, fetched, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.order import EpochOrder, EpochPlan, Topology, WorkerReader, first_uses, thinly_read
from streaming.order.quality import rows_drawn
from streaming.read.epoch.early_ranges import EarlyRanges, TrainingRate, WorkerTurn
from streaming.read.epoch.epoch_reader import EpochReader
from streaming.read.epoch.read_ahead import Horizon, ListRules, ReadAhead
from streaming.read.epoch.segments import Planning, segments
from streaming.read.shards.sample_store import SampleStore
from streaming.read.streams.cache_limit import CacheRoom
from streaming.read.telemetry.progress_bar import first_samples_shown


@dataclass(frozen=True, slots=True)
class Share:
    """Whose samples, and how far ahead they are planned: `predownload` samples, None for as many as are useful.

    `next_order` gives the order of the epoch that follows. `room`: the cache has a limit. `is_counted`: while this
    process reads, another counts what training waits for.
    """

    plan: EpochPlan
    rank: int
    worker: int
    n_workers: int
    next_order: Callable[[], EpochOrder]
    predownload: int | None
    room: CacheRoom | None
    is_counted: bool

    @property
    def node(self) -> int:
        """The machine of this rank."""
        return self.plan.topology.node_of(self.rank)


def read_share(store: SampleStore, share: Share, get: Callable[[int], Any] | None) -> Iterator[Any]:
    """The samples of a share, in order.

    `get(sample_id)` makes a sample where the user's class does so; None: straight from the shard.
    """
    plan, batch_size = share.plan, share.plan.batch_size
    reader = WorkerReader(plan, share.rank, share.worker, share.n_workers)
    then = share.predownload or 2 * max(64, 8 * batch_size)
    if store.files.all_sources:
        planned = segments(reader, store.catalog, store.pool, None, Planning(then, then))
        return EpochReader(store.pool, store.finder, None, None, get, store.stopwatch).samples(planned)
    rules, sparse = _rules(share), _sparse(store, plan.order, plan.topology)
    if share.room is not None:  # lists are renewed when more is planned, and old ones keep what is done with
        then = min(then, max(batch_size, rules.renew_after // (share.n_workers * plan.topology.n_groups)))
    horizon = None if share.predownload else shards_ahead(store, share)
    name = f"{share.rank}.{share.worker}"
    ahead = ReadAhead(store.client, store.files, name, horizon, rules, sparse=sparse)
    planning = Planning(batch_size, then, is_limited=share.room is not None)
    turn = WorkerTurn(share.worker, share.n_workers, batch_size)
    rate = TrainingRate(store.counters, batch_size, plan.topology.ranks_per_node, is_counted=share.is_counted)
    early = EarlyRanges(store.ranges, store.files, store.finder, sparse, turn, rate)
    planned = segments(reader, store.catalog, store.pool, ahead, planning)
    keeps_one = share.room is not None and share.room.is_tight
    return EpochReader(store.pool, store.finder, early, ahead, get, store.stopwatch, keeps_one=keeps_one).samples(
        planned
    )


def shown_at_start(samples: Iterator[Any], store: SampleStore, share: Share) -> Iterator[Any]:
    """The samples of a share that begins a run; a terminal says how far the wait for the first batch is."""
    plan = share.plan

    def shards() -> list[int]:
        reader = WorkerReader(plan, share.rank, share.worker, share.n_workers)
        first, _ = store.catalog.locate(reader.next_ids(plan.batch_size)[0])
        found: list[int] = np.unique(first).tolist()
        return found

    return first_samples_shown(samples, plan.batch_size, shards, store.files.is_present, store.waits, store.client)


def shards_ahead(store: SampleStore, share: Share) -> Horizon:
    """What a node needs from a position on and in the next epoch, for read-ahead; not what it reads by range."""
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
    """What a rank's node needs first from a position on, whatever the batch size; not what it reads by range."""
    shards = first_uses(order, topology, topology.node_of(rank), position, order.catalog.n_shards)
    wanted: list[int] = _without(_sparse(store, order, topology), shards).tolist()
    return wanted


def transfer_bytes(store: SampleStore, plan: EpochPlan) -> NDArray[np.int64]:
    """What each shard costs to fetch in this epoch, int64 (shard,): of one that is hardly read, its samples alone."""
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
    """The shards that are read by range because so little of them is needed; None if there are none."""
    sparse = thinly_read(order, topology)
    return None if sparse is None else sparse & store.files.by_parts


def _without(sparse: NDArray[np.bool_] | None, shards: NDArray[np.int64]) -> NDArray[np.int64]:
    return shards if sparse is None else shards[~sparse[shards]]
