"""What a node waits for before its first batch, and for how long: an estimate, from what lies where now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.formats.layout import layout_of
from streaming.order import EpochPlan
from streaming.read.shards.files import ShardFiles
from streaming.read.shards.offsets import MAX_TABLE_BYTES


@dataclass(frozen=True, slots=True)
class StoreSpeed:
    """What a store is to a node: seconds to the first byte of an answer, and bytes a second over all connections."""

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if self.latency_s < 0 or not self.bytes_per_s > 0:
            raise OptionError(
                f"latency_s={self.latency_s} must be 0 seconds or more, and bytes_per_s={self.bytes_per_s} above 0"
            )


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """What comes for the first batch of all ranks of a node, beyond what is on disk."""

    n_bytes: int
    """Records of average size, their shards' offsets, or whole shards where samples cannot come alone."""
    seconds: float
    """From `iter()` on, without what a program needs to get ready."""


def first_batch(
    plan: EpochPlan, node: int, files: ShardFiles, speed: StoreSpeed, *, ranges_at_once: int, shards_at_once: int
) -> FirstBatch:
    """The first batch of an epoch.

    Samples come alone where their shards can be read by parts: in a round of requests for offsets and one for records.
    The other shards come whole, several at once, together with those behind them; and so do all, if that is sooner.
    """
    positions = plan.source(plan.node_batch(0, node)) if plan.n_batches else np.zeros(0, np.int64)
    ids = np.unique(plan.order.reader().ids(positions))
    shards, _ = plan.order.catalog.locate(ids)
    missing = {shard for shard in np.unique(shards).tolist() if not files.is_present(shard)}
    alone = shards[[shard in missing and bool(files.by_parts[shard]) for shard in shards.tolist()]]
    n_rounds = math.ceil(len(np.unique(alone)) / ranges_at_once) + math.ceil(len(alone) / ranges_at_once)
    n_bytes = _offset_bytes(files, alone) + int(files.mean_record_bytes(alone).sum())
    whole = [_transfer_bytes(files, shard) for shard in missing if not files.by_parts[shard]]
    n_at_once = min(shards_at_once, plan.order.catalog.n_shards)
    in_parts_s = n_rounds * speed.latency_s + n_bytes / speed.bytes_per_s + _whole_s(whole, n_at_once, speed)
    all_whole_s = _whole_s([_transfer_bytes(files, shard) for shard in missing], n_at_once, speed)
    return FirstBatch(n_bytes + sum(whole), min(in_parts_s, all_whole_s))


def _whole_s(sizes: Sequence[int], n_at_once: int, speed: StoreSpeed) -> float:
    """How long shards take that come so many at once, others in the locations that are left."""
    n_turns = math.ceil(len(sizes) / n_at_once)
    mean_bytes = sum(sizes) / max(1, len(sizes))
    return n_turns * (speed.latency_s + n_at_once * mean_bytes / speed.bytes_per_s)


def _offset_bytes(files: ShardFiles, shards: NDArray[np.int64]) -> int:
    """What the offsets of these samples take, int64 (sample,): the shard of each."""
    n_bytes = 0
    for shard, n_rows in zip(*map(np.ndarray.tolist, np.unique(shards, return_counts=True))):
        index, local = files.index(shard)
        n_table = layout_of(index.schema(local).format).header_bytes(int(index.samples[local]))
        n_bytes += n_table if n_table <= MAX_TABLE_BYTES else 8 * n_rows
    return n_bytes


def _transfer_bytes(files: ShardFiles, shard: int) -> int:
    need = files.need(shard)
    return need.n_bytes if need.zip_name is None else need.zip_bytes
