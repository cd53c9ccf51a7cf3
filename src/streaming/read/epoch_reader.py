"""One worker's share of one epoch, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.order import Catalog, EpochOrder, EpochPlan, WorkerReader, first_uses
from streaming.read.read_ahead import ReadAhead
from streaming.read.shard_reader import ShardPool


@dataclass(frozen=True, slots=True)
class _Planned:
    """Samples to be read, in order, with where they lie: int64 (sample,) each."""

    ids: NDArray[np.int64]
    shards: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> _Planned:
        return _Planned(self.ids[start:stop], self.shards[start:stop], self.rows[start:stop])


def read_epoch(
    reader: WorkerReader,
    catalog: Catalog,
    pool: ShardPool,
    ahead: ReadAhead | None,
    *,
    min_ahead: int,
    get: Callable[[int], Any] | None,
) -> Iterator[Any]:
    """The samples that `reader` is due, in order, with the shards of the next `min_ahead` samples announced.

    `get(sample_id)` makes a sample where the user's class does so; None: straight from the shard.
    """

    def plan() -> _Planned:
        ids, _ = reader.next_ids(2 * min_ahead)
        return _Planned(ids, *catalog.locate(ids))

    def read(planned: _Planned) -> Iterator[Any]:
        if get is not None:
            yield from map(get, planned.ids.tolist())
            return
        open_shards, open_shard = pool.open_shards, pool.open
        for shard, row in zip(planned.shards.tolist(), planned.rows.tolist()):
            opened = open_shards.get(shard)
            if opened is None:
                opened = open_shard(shard)
            yield opened.sample(row)

    current = plan()
    if ahead is not None:
        ahead.advance(_by_first_use(current.shards), reader.position)
    while len(current):
        half = len(current) // 2
        yield from read(current.part(0, half))
        upcoming = plan()
        in_use = _by_first_use(np.concatenate([current.shards[half:], upcoming.shards]))
        if ahead is not None:
            ahead.advance(in_use, reader.position)
        yield from read(current.part(half, len(current)))
        pool.keep_only(in_use)
        current = upcoming


def shards_ahead(plan: EpochPlan, node: int, next_order: Callable[[], EpochOrder]) -> Callable[[int, int], list[int]]:
    """What a node needs from a position on and in the next epoch, for read-ahead: (position, limit) -> shards."""
    kept: list[EpochOrder] = []  # the next epoch's order, made only when the end of this one is in reach

    def horizon(position: int, limit: int) -> list[int]:
        shards: list[int] = plan.first_uses(node, position, limit).tolist()
        if len(shards) < limit:
            if not kept:
                kept.append(next_order())
            shards += first_uses(kept[0], plan.topology, node, 0, limit - len(shards)).tolist()
        return shards

    return horizon


def _by_first_use(shards: NDArray[np.int64]) -> list[int]:
    """Distinct shards in order of first appearance."""
    distinct, first = np.unique(shards, return_index=True)
    ordered: list[int] = distinct[np.argsort(first)].tolist()
    return ordered
