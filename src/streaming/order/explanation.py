"""What an order means for the hardware that reads it, and how good it is: in numbers, and as a text.

Everything comes from closed forms and from small windows, so it takes about as long at 10⁹ samples as at 10⁶.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.epoch import EpochOrder
from streaming.order.node_lanes import Lanes
from streaming.order.partition import node_share
from streaming.order.plan import EpochPlan
from streaming.order.quality import ShuffleScore, most_at_once, rows_drawn, shuffle_score, stretches, typical_run
from streaming.order.topology import Topology

MOST_EXTRA_DOWNLOADS: Final = 0.05
"""What still counts as downloading each shard once, in downloads per shard beyond the first."""
_MOST_BATCHES: Final = 64
_MOST_STEPS: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class StreamShare:
    """What one stream gives to an epoch."""

    n_stored: int
    """Samples that the stream has."""
    n_drawn: int
    """Samples that an epoch takes from it."""
    n_left_out: int
    """Of these, samples that fill no unit where streams take turns by units: the epoch goes without them."""

    @property
    def repeats(self) -> float:
        """How often each of its samples comes in an epoch, on average."""
        return self.n_drawn / max(1, self.n_stored)


@dataclass(frozen=True, slots=True)
class Explanation:
    """An epoch on some hardware, in numbers; `str()` puts them in words.

    Streams, canonical nodes, shuffle and score come from data and settings alone; batches, padding, downloads and
    cache also from the hardware.
    """

    n_samples: int
    streams: tuple[StreamShare, ...]
    n_nodes: int
    n_ranks: int
    batch_size: int
    n_batches: int
    """Batches of each rank."""
    n_padding: int
    """Samples over all ranks that are repeated to fill the last batch, beyond the epoch's own."""
    n_dropped: int
    """Samples of the epoch that no rank gets."""
    n_canonical_nodes: int
    algorithm: str | None
    """The shuffle; None: stored order."""
    block_samples: int | None
    """Samples of a canonical node within which they mix; None where the shuffle has no block."""
    block_shards: float | None
    """The same, in shards of typical length."""
    shards_in_use: float
    """Shards of which the busiest node is in the middle, on average over the epoch."""
    most_shards_in_use: int
    """The same where there are most."""
    node_downloads: tuple[float, ...]
    """Shards that each node needs in an epoch; whole numbers where it reads its canonical nodes alone."""
    downloads_per_shard: float
    """How often a shard is downloaded in an epoch, over all nodes, if a node keeps what it still needs."""
    cache_shards: float
    """Shards for which a node needs room so that it fetches none twice in an epoch."""
    cache_bytes: int | None
    node_download_bytes: tuple[int, ...] | None
    """Bytes that each node downloads in an epoch."""
    score: ShuffleScore
    warning: str | None
    """What is better changed before training starts."""

    @property
    def shuffle_quality(self) -> float:
        """0: the stored order; 1: no different from a full shuffle. What it means: `streaming.order.quality`."""
        return self.score.score

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(
    order: EpochOrder,
    topology: Topology,
    batch_size: int,
    *,
    shard_bytes: float | NDArray[np.int64] | None = None,
    remainder: str = "pad",
) -> Explanation:
    """What an epoch means on this hardware, from its first sample on.

    `shard_bytes`: bytes of a shard on the wire, the mean or int64 (shard,); without it nothing is said in bytes.
    Downloads are counted over the whole batches: the last, cut batch may need single samples of other shards.
    """
    plan = EpochPlan(order, topology, batch_size, remainder=remainder)
    n_shards, stored = order.catalog.n_shards, order.catalog.samples_per_stream
    sizes = None if shard_bytes is None else np.broadcast_to(np.asarray(shard_bytes, np.float64), (n_shards,))
    reads = _Reads(plan)
    needs = list(reads.needs(np.ones(n_shards) if sizes is None else sizes))
    node_downloads = tuple(n for n, _ in needs)
    n_read = int(np.count_nonzero(rows_drawn(order)))
    per_shard = sum(node_downloads) / max(1, n_read)
    busiest = reads.lanes_of(reads.busiest())
    in_use = float(stretches(order, busiest).sum())
    # Design: lanes × (1 + 2 block/z'). The lanes' own shards are in use anyway; twice what the block adds to them.
    cache = 2 * in_use - sum(map(len, busiest)) if order.uses_block else in_use
    cache = max(in_use, min(cache, max(node_downloads)))
    return Explanation(
        n_samples=order.n_samples,
        streams=tuple(map(StreamShare, stored.tolist(), order.draws.tolist(), order.left_out.tolist())),
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
        shards_in_use=in_use,
        most_shards_in_use=most_at_once(order, busiest),
        node_downloads=node_downloads,
        downloads_per_shard=per_shard,
        cache_shards=cache,
        cache_bytes=None if sizes is None or not n_shards else math.ceil(cache * float(sizes.mean())),
        node_download_bytes=None if sizes is None else tuple(math.ceil(n_bytes) for _, n_bytes in needs),
        score=shuffle_score(order),
        warning=_warning(order, topology.n_nodes, per_shard),
    )


class _Reads:
    """Which part of each canonical node each node reads, in whole batches: a sparse table of (node, lane) pairs.

    Lanes are the canonical nodes of all orders of the epoch, counted through one order after the other.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan
        self._order = order = plan.order
        self._n_nodes = plan.topology.n_nodes
        n_lanes = np.array([part.grid.n_lanes for part in order.parts], np.int64)
        self._first_lane = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_lanes)])
        self._n_lanes = int(self._first_lane[-1])
        pairs, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for begin, stop in self._batches():
            node, lane, n_slots = self._cut(begin, stop)
            pairs.append(node * max(1, self._n_lanes) + lane)
            numbers.append(n_slots)
        distinct, which = np.unique(np.concatenate(pairs), return_inverse=True)
        self._node, self._lane = np.divmod(distinct, max(1, self._n_lanes))
        if order.effective_algorithm == "naive":  # any canonical node reads any shard of its order
            self._lane = self._first_lane[self._part_of(self._lane)]
            distinct, again = np.unique(self._node * max(1, self._n_lanes) + self._lane, return_inverse=True)
            self._node, self._lane = np.divmod(distinct, max(1, self._n_lanes))
            which = again[which]
        n_read = np.bincount(which, weights=np.concatenate(numbers), minlength=len(distinct))
        in_lane = np.bincount(self._lane, weights=n_read, minlength=self._n_lanes)
        self._fraction = n_read / np.maximum(1, in_lane[self._lane])

    def lanes_of(self, node: int) -> Lanes:
        """The canonical nodes of each order that a node reads."""
        mine = self._lane[self._node == node]
        parts = self._part_of(mine)
        return [mine[parts == number] - self._first_lane[number] for number in range(len(self._order.parts))]

    def busiest(self) -> int:
        """The node that reads most canonical nodes."""
        return int(np.bincount(self._node, minlength=1).argmax())

    def needs(self, sizes: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
        """Per node: how many shards it needs, and the sum of their `sizes`, float64 (shard,)."""
        if self._order.effective_algorithm is None and self._n_lanes == len(self._order.parts) == 1:
            yield from self._sequential_needs(sizes)
            return
        rows, shards_of_lane = rows_drawn(self._order), self._shards_of_lanes()
        known: dict[bytes, tuple[float, float]] = {}
        for node in range(self._n_nodes):
            mine = np.flatnonzero(self._node == node)
            key = self._lane[mine].tobytes() + self._fraction[mine].astype(np.float32).tobytes()
            if key not in known:  # without canonical nodes of their own all nodes are alike
                pieces = [shards_of_lane[lane] for lane in self._lane[mine].tolist()]
                fractions = np.repeat(self._fraction[mine], [len(piece) for piece in pieces])
                shards, which = np.unique(np.concatenate([np.zeros(0, np.int64), *pieces]), return_inverse=True)
                lanes = np.repeat(self._lane[mine], [len(piece) for piece in pieces])
                missed = np.ones(len(shards))
                np.multiply.at(missed, which, self._missed(rows[shards[which]], fractions, lanes))
                known[key] = float((1 - missed).sum()), float((1 - missed) @ sizes[shards])
            yield known[key]

    def _sequential_needs(self, sizes: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
        """The same, exactly, where a node reads positions `low` to `high` of each batch and shards lie side by side."""
        size, uses = self._plan.global_batch, self._order.parts[0].uses(np.zeros(1, np.int64))
        for node in range(self._n_nodes):
            low, high = node_share(size, self._plan.topology, node)
            at = uses.first % size
            met = ((low <= at) & (at < high)) | ((low - at) % size < uses.end - uses.first)
            shards = np.unique(uses.shard[met & (high > low)])
            yield float(len(shards)), float(sizes[shards].sum())

    def _missed(
        self, rows: NDArray[np.int64], fractions: NDArray[np.float64], lanes: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """How likely a reader of this fraction of this lane gets none of so many samples of it: (case,) each."""
        if self._order.effective_algorithm is not None:
            return np.asarray((1 - fractions) ** rows)
        # In stored order a node gets a stretch of each batch; a shard meets one, or falls between two.
        shares = np.array([part.n_samples / part.grid.n_lanes for part in self._order.parts])
        per_batch = self._plan.global_batch * shares[self._part_of(lanes)] / max(1, self._order.n_samples)
        return np.clip(1 - fractions - (rows - 1) / per_batch, 0, 1)

    def _shards_of_lanes(self) -> list[NDArray[np.int64]]:
        """The shards of every lane, each once."""
        n_shards = max(1, self._order.catalog.n_shards)
        pairs = [np.zeros(0, np.int64)]
        for part, first in zip(self._order.parts, self._first_lane.tolist()):
            uses = part.uses(np.arange(part.grid.n_lanes, dtype=np.int64))
            pairs.append((uses.lane + first) * n_shards + uses.shard)
        lane, shard = np.divmod(np.unique(np.concatenate(pairs)), n_shards)
        return np.split(shard, np.searchsorted(lane, np.arange(1, self._n_lanes), "left"))

    def _part_of(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._first_lane, lanes, "right") - 1

    def _batches(self) -> Iterator[tuple[int, int]]:
        """Batches that show how all are cut: one period of them where there is one, else some."""
        size, n = self._plan.global_batch, min(self._order.n_samples, self._plan.stop)
        n_whole = n // size
        if not n_whole:
            yield 0, n
            return
        if self._order.merge is None:
            n_whole = min(n_whole, self._n_lanes // math.gcd(self._n_lanes, size))
        cost = self._n_lanes + self._n_nodes + (0 if self._order.merge is None else size)
        n_seen = min(n_whole, _MOST_BATCHES, max(1, _MOST_STEPS // cost))
        for number in range(n_seen):
            begin = n_whole * number // n_seen * size
            yield begin, begin + size

    def _cut(self, begin: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The slots of a batch by canonical node, cut by node: node, lane and number of slots, int64 (pair,) each."""
        order, topology = self._order, self._plan.topology
        n_slots = (stop - begin) // order.slot_samples
        ends = [node_share(n_slots, topology, node)[1] for node in range(self._n_nodes)]
        node_ends = np.array(ends, np.int64)
        if order.merge is None:
            lanes, grid = np.arange(self._n_lanes, dtype=np.int64), order.parts[0].grid
            lane_ends = np.cumsum(grid.first_ranks(lanes, stop) - grid.first_ranks(lanes, begin))
            cuts = np.union1d(lane_ends, node_ends)
            cuts = cuts[cuts > 0]
            lengths = np.diff(cuts, prepend=np.int64(0))
            return np.searchsorted(node_ends, cuts), np.searchsorted(lane_ends, cuts), lengths
        scaled, parts = order.lanes_and_parts(np.arange(begin, stop, order.slot_samples, dtype=np.int64)[:n_slots])
        in_order = np.argsort(scaled, kind="stable")
        node = np.repeat(np.arange(self._n_nodes), np.diff(node_ends, prepend=np.int64(0)))
        n_lanes = np.diff(self._first_lane)
        own = scaled // (n_lanes.max() // n_lanes)[parts] + self._first_lane[parts]
        pairs, counts = np.unique(node * self._n_lanes + own[in_order], return_counts=True)
        return pairs // self._n_lanes, pairs % self._n_lanes, counts


def _warning(order: EpochOrder, n_nodes: int, per_shard: float) -> str | None:
    n_lanes = order.n_canonical_nodes
    if n_nodes <= n_lanes or per_shard <= 1 + MOST_EXTRA_DOWNLOADS:
        return None
    said = (
        f"{n_nodes:,} nodes read {_count(n_lanes, 'canonical node')}, so each shard is downloaded {per_shard:.1f} "
        "times an epoch"
    )
    if order.effective_algorithm == "naive":
        return f"{said}: with shuffle_algo='naive' any node needs any shard"
    better = 1
    # A canonical node at a border between nodes is read by both; where borders coincide, by one.
    while better < n_nodes or (n_nodes - math.gcd(better, n_nodes)) > MOST_EXTRA_DOWNLOADS * better:
        better *= 2
    # A shard that lies across a border between nodes is needed on both sides, however many canonical nodes there are.
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
        yield f"dropped: {_count(it.n_dropped, 'sample')}, so that all ranks get equally many"
    for number, stream in enumerate(it.streams):
        n_given = stream.n_drawn - stream.n_left_out
        share = 100 * n_given / max(1, it.n_samples)
        yield (
            f"stream {number}: {n_given:,} of its {stream.n_stored:,} samples an epoch, "
            f"{'each once' if stream.repeats == 1 else f'each {stream.repeats:.3g} times'}; {share:.3g} % of the epoch"
            + (f"; {stream.n_left_out:,} more fill no unit and are left out" if stream.n_left_out else "")
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
        f"; at most {_size(max(it.node_download_bytes))} on a node" if it.node_download_bytes else ""
    )
    yield f"cache that a node needs, to fetch none twice: about {it.cache_shards:,.0f} shards" + (
        f", {_size(it.cache_bytes)}" if it.cache_bytes is not None else ""
    )
    if it.warning:
        yield f"warning: {it.warning}"


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _size(n_bytes: float) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min(len(units) - 1, int(math.log2(max(1.0, n_bytes))) // 10)
    return f"{n_bytes / 1024**step:,.{1 if step else 0}f} {units[step]}"
