"""What a node waits for before its first batch, and for how long: an estimate, from what is on disk now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.fetch.decide.ranges import RangeRules
from streaming.order import EpochPlan
from streaming.read.shards.files import ShardFiles


@dataclass(frozen=True, slots=True)
class StoreSpeed:
    """How fast a store serves a node: seconds to the first byte of an answer, bytes a second over all connections."""

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
    """Records of average size and their shards' offsets; whole shards where samples cannot come alone."""
    seconds: float
    """From `iter()` on, without the time that a program needs to get ready."""


def first_batch(
    plan: EpochPlan, node: int, files: ShardFiles, speed: StoreSpeed, rules: RangeRules, *, shards_at_once: int
) -> FirstBatch:
    """Estimate the wait for the first batch of an epoch.

    Samples come alone where their shards can be read by parts: in a round of requests for offsets and one for records.
    The other shards come whole, several at once, together with those behind them; and so do all, if that is sooner.
    """
    positions = plan.source(plan.node_batch(0, node)) if plan.n_batches else np.zeros(0, np.int64)
    ids = np.unique(plan.order.reader().ids(positions))
    shards, _ = plan.order.catalog.locate(ids)
    missing = {shard for shard in np.unique(shards).tolist() if not files.is_present(shard)}
    alone = shards[[shard in missing and bool(files.by_parts[shard]) for shard in shards.tolist()]]
    n_rounds = math.ceil(len(np.unique(alone)) / rules.at_once) + math.ceil(len(alone) / rules.at_once)
    n_bytes = _offset_bytes(files, alone, rules) + int(files.mean_record_bytes(alone).sum())
    whole = [_transfer_bytes(files, shard) for shard in missing if not files.by_parts[shard]]
    n_at_once = min(shards_at_once, plan.order.catalog.n_shards)
    in_parts_s = n_rounds * speed.latency_s + n_bytes / speed.bytes_per_s + _whole_s(whole, n_at_once, speed)
    all_whole_s = _whole_s([_transfer_bytes(files, shard) for shard in missing], n_at_once, speed)
    return FirstBatch(n_bytes + sum(whole), min(in_parts_s, all_whole_s))


def _whole_s(sizes: Sequence[int], n_at_once: int, speed: StoreSpeed) -> float:
    """Seconds that shards of these sizes take, in rounds of `n_at_once`; later shards fill up the last round."""
    n_rounds = math.ceil(len(sizes) / n_at_once)
    mean_bytes = sum(sizes) / max(1, len(sizes))
    return n_rounds * (speed.latency_s + n_at_once * mean_bytes / speed.bytes_per_s)


def _offset_bytes(files: ShardFiles, shards: NDArray[np.int64], rules: RangeRules) -> int:
    """Bytes that say where samples lie, for samples of these shards: int64 (sample,)."""
    n_bytes = 0
    for shard, n_rows in zip(*map(np.ndarray.tolist, np.unique(shards, return_counts=True))):
        layout, n_samples = files.layout(shard)
        n_table = layout.header_bytes(n_samples)
        n_bytes += n_table if n_table <= rules.table_bytes else 8 * n_rows
    return n_bytes


def _transfer_bytes(files: ShardFiles, shard: int) -> int:
    request = files.request(shard)
    return request.n_bytes if request.zip_name is None else request.zip_bytes
