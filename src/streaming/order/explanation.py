"""What an order means for the hardware that reads it, and how good it is: in numbers, and as a text.

Everything comes from closed forms and small windows, so it takes about as long for 10⁹ samples as for 10⁶.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.epoch import EpochOrder, rows_drawn
from streaming.order.nodes.plan import EpochPlan
from streaming.order.nodes.topology import Topology
from streaming.order.report.node_reads import NodeReads
from streaming.order.report.quality import ShuffleScore, shuffle_score, typical_run
from streaming.order.report.shards_in_use import most_at_once
from streaming.order.report.working_set import working_set
from streaming.units import shown_bytes

MOST_EXTRA_DOWNLOADS: Final = 0.05
"""Downloads per shard, beyond the first, that still count as downloading each shard once."""


@dataclass(frozen=True, slots=True)
class StreamShare:
    """The samples that one stream gives to an epoch."""

    n_stored: int
    """Samples in the stream."""
    n_drawn: int
    """Samples that an epoch takes from it."""
    n_left_out: int
    """Those of them that the epoch leaves out: where streams take turns by units, those that fill none; where batches
    are composed exactly, those for which other streams give too few."""
    n_in_batch: int | None = None
    """Samples of the stream in each batch of a rank, where batches are composed exactly; else None."""

    @property
    def repeats(self) -> float:
        """How often each sample of the stream comes in an epoch, on average."""
        return self.n_drawn / max(1, self.n_stored)


@dataclass(frozen=True, slots=True)
class Explanation:
    """An epoch on some hardware, in numbers; `str()` puts them into words.

    Streams, canonical nodes, shuffle and score follow from data and settings alone; batches, padding, downloads and
    cache depend on the hardware, too.
    """

    n_samples: int
    streams: tuple[StreamShare, ...]
    n_nodes: int
    n_ranks: int
    batch_size: int
    n_batches: int
    """Batches of each rank."""
    n_padding: int
    """Samples that are repeated to fill the last batch, over all ranks."""
    n_dropped: int
    """Samples of the epoch that no rank gets."""
    n_canonical_nodes: int
    algorithm: str | None
    """The shuffle algorithm; None for the stored order."""
    block_samples: int | None
    """Samples in a shuffle block of a canonical node; None if the shuffle has no block."""
    block_shards: float | None
    """The shuffle block in shards of typical length."""
    shards_in_use: float
    """Shards that the busiest node has in use, from their first sample to their last, on average over the epoch."""
    most_shards_in_use: int
    """Shards that the busiest node has in use at the moment when it has most."""
    node_downloads: tuple[float, ...]
    """Shards that each node needs in an epoch; whole numbers for a node that reads its canonical nodes alone."""
    downloads_per_shard: float
    """Downloads of a shard in an epoch, over all nodes, if nodes keep the shards that they still need."""
    cache_shards: float
    """Shards for which a node needs room, so that it fetches none twice in an epoch."""
    cache_bytes: int | None
    node_download_bytes: tuple[int, ...] | None
    """Bytes that each node downloads in an epoch."""
    first_batch_bytes: int | None
    """Bytes that this rank's node has to fetch for its first batch."""
    first_batch_s: float | None
    """Seconds that this takes, about."""
    score: ShuffleScore
    warning: str | None
    """What had better be changed before training starts."""

    @property
    def shuffle_quality(self) -> float:
        """0: the stored order; 1: no different from a full shuffle. See `streaming.order.report.quality`."""
        return self.score.score

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(
    order: EpochOrder,
    topology: Topology,
    batch_size: int,
    *,
    shard_bytes: float | NDArray[np.int64] | None = None,
    disk_bytes: NDArray[np.int64] | None = None,
    first_batch_bytes: int | None = None,
    first_batch_s: float | None = None,
    remainder: str = "pad",
) -> Explanation:
    """Explain an epoch on this hardware, read from its first sample on.

    `shard_bytes`: bytes of a shard on the wire, the mean or int64 (shard,); if None, the explanation has no bytes.
    `disk_bytes`: bytes of each shard in the cache, int64 (shard,), if they differ. `first_batch_bytes` and
    `first_batch_s` are passed on. Downloads are counted over whole batches; the last batch, if it is cut, may need
    single samples of other shards.
    """
    plan = EpochPlan(order, topology, batch_size, remainder=remainder)
    n_shards, stored = order.catalog.n_shards, order.catalog.samples_per_stream
    sizes = None if shard_bytes is None else np.broadcast_to(np.asarray(shard_bytes, np.float64), (n_shards,))
    on_disk = sizes if disk_bytes is None else disk_bytes
    reads = NodeReads(plan)
    needs = list(reads.needs(np.ones(n_shards) if sizes is None else sizes))
    node_downloads = tuple(n for n, _ in needs)
    per_shard = _per_shard(order, node_downloads)
    at_hand = working_set(plan, reads)
    return Explanation(
        n_samples=order.n_samples,
        streams=tuple(
            map(
                StreamShare,
                stored.tolist(),
                order.draws.tolist(),
                order.left_out.tolist(),
                _in_batch(order, batch_size),
            )
        ),
        n_nodes=topology.n_nodes,
        n_ranks=topology.n_ranks,
        batch_size=batch_size,
        n_batches=plan.n_batches,
        n_padding=max(0, plan.stop - order.n_samples),
        n_dropped=max(0, order.n_samples - plan.stop),
        n_canonical_nodes=order.n_canonical_nodes,
        algorithm=order.effective_algorithm,
        block_samples=order.shuffle_block_size if order.uses_block else None,
        block_shards=order.shuffle_block_size / max(1.0, typical_run(order)) if order.uses_block else None,
        shards_in_use=at_hand.in_use,
        most_shards_in_use=most_at_once(order, reads.canonical_nodes_of(reads.busiest())),
        node_downloads=node_downloads,
        downloads_per_shard=per_shard,
        cache_shards=at_hand.shards,
        cache_bytes=None if on_disk is None or not n_shards else math.ceil(at_hand.shards * float(on_disk.mean())),
        node_download_bytes=None if sizes is None else tuple(math.ceil(n_bytes) for _, n_bytes in needs),
        first_batch_bytes=first_batch_bytes,
        first_batch_s=first_batch_s,
        score=shuffle_score(order),
        warning=_warning(order, topology.n_nodes, per_shard),
    )


def node_warning(plan: EpochPlan) -> str | None:
    """Return `Explanation.warning` alone, for the start of a run; at once if there is none."""
    order, n_nodes = plan.order, plan.topology.n_nodes
    if n_nodes <= order.n_canonical_nodes:
        return None
    needs = NodeReads(plan).needs(np.ones(order.catalog.n_shards))
    return _warning(order, n_nodes, _per_shard(order, tuple(n for n, _ in needs)))


def _in_batch(order: EpochOrder, batch_size: int) -> list[int] | list[None]:
    """Return the samples of each stream in a batch of a rank, if batches are composed exactly."""
    if order.composition is None or order.unit is None:
        return [None] * len(order.draws)
    return [share * batch_size // order.unit for share in order.composition]


def _per_shard(order: EpochOrder, node_downloads: tuple[float, ...]) -> float:
    """Return the downloads per shard, over all nodes."""
    return sum(node_downloads) / max(1, int(np.count_nonzero(rows_drawn(order))))


def _warning(order: EpochOrder, n_nodes: int, per_shard: float) -> str | None:
    n_canonical_nodes = order.n_canonical_nodes
    if n_nodes <= n_canonical_nodes or per_shard <= 1 + MOST_EXTRA_DOWNLOADS:
        return None
    said = (
        f"{n_nodes:,} nodes read {_count(n_canonical_nodes, 'canonical node')}, "
        f"so each shard is downloaded {per_shard:.1f} times an epoch"
    )
    if order.effective_algorithm == "naive":
        return f"{said}: with shuffle_algo='naive' any node needs any shard"
    better = 1
    # A canonical node that lies across a border between nodes is read by both; if borders coincide, none does.
    while better < n_nodes or (n_nodes - math.gcd(better, n_nodes)) > MOST_EXTRA_DOWNLOADS * better:
        better *= 2
    # A shard that lies across a border between nodes is needed by both, however many canonical nodes there are.
    at_borders = (n_nodes - 1) / max(1, int(np.count_nonzero(rows_drawn(order))))
    then = 1 + (n_nodes - math.gcd(better, n_nodes)) / better + at_borders
    if then > 0.9 * per_shard:
        return f"{said}: there are too few shards for so many nodes"
    return (
        f"{said}; num_canonical_nodes={better} would give {then:.2f} (another order: to be set before training starts)"
    )


def _lines(it: Explanation) -> Iterator[str]:
    yield (
        f"epoch: {_count(it.n_samples, 'sample')} in {_count(it.n_batches, 'batch', 'batches')} of "
        f"{it.batch_size} on each of {_count(it.n_ranks, 'rank')} ({_count(it.n_nodes, 'node')})"
    )
    if it.n_padding:
        yield f"padding: {_count(it.n_padding, 'sample')} repeated, so that all ranks get equally many"
    if it.n_dropped:
        exact = any(stream.n_in_batch is not None for stream in it.streams)
        why = "which fill no whole batch" if exact else "so that all ranks get equally many"
        yield f"dropped: {_count(it.n_dropped, 'sample')}, {why}"
    for number, stream in enumerate(it.streams):
        n_given = stream.n_drawn - stream.n_left_out
        share = 100 * n_given / max(1, it.n_samples)
        yield (
            f"stream {number}: {n_given:,} of its {stream.n_stored:,} samples an epoch, "
            f"{'each once' if stream.repeats == 1 else f'each {stream.repeats:.3g} times'}; {share:.3g} % of the epoch"
            + ("" if stream.n_in_batch is None else f"; {stream.n_in_batch:,} in each batch of a rank")
            + (f"; {stream.n_left_out:,} more are left out, {_reason(stream)}" if stream.n_left_out else "")
        )
    yield f"order: {it.algorithm or 'as stored'}, {_count(it.n_canonical_nodes, 'canonical node')}" + (
        ""
        if it.block_samples is None
        else f", a block of {it.block_samples:,} samples ({it.block_shards:.1f} shards) in each"
    )
    score = it.score
    yield (
        f"shuffle quality: {score.score:.2f} of 1 (mixing of neighbours {score.mixing:.2f}, "
        f"spread over the epoch {score.spread:.2f})"
    )
    yield f"shards in use at once on a node: about {it.shards_in_use:,.0f}, at most {it.most_shards_in_use:,}"
    yield f"downloads of each shard over all nodes: {it.downloads_per_shard:.2f} an epoch" + (
        f"; at most {shown_bytes(max(it.node_download_bytes))} on a node" if it.node_download_bytes else ""
    )
    yield f"cache that a node needs, to fetch none twice: about {it.cache_shards:,.0f} shards" + (
        f", {shown_bytes(it.cache_bytes)}" if it.cache_bytes is not None else ""
    )
    if it.first_batch_bytes is not None and it.first_batch_s is not None:
        yield (
            f"first batch: about {it.first_batch_s:.2g} s, for {shown_bytes(it.first_batch_bytes)}"
            if it.first_batch_bytes
            else "first batch: at once, from disk"
        )
    if it.warning:
        yield f"warning: {it.warning}"


def _reason(stream: StreamShare) -> str:
    return "as they fill no unit" if stream.n_in_batch is None else "as other streams give too few beside them"


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"
