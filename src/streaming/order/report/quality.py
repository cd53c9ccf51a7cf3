"""How good a shuffle is: one number between 0, the stored order, and 1, no different from a full shuffle.

The unit is a *strip*: as many consecutive stored samples as a shard typically has, at most a 32nd of the epoch. Stored
neighbours resemble each other, so two things make a shuffle good, and each is measured against a full shuffle:

- **mixing**, in the short run: how many different strips a window of consecutive positions holds, at several places
  of the epoch, both ends included. 0 is what the stored order has, 1 what a full shuffle has on average.
- **spread**, in the long run: over how much of the epoch the samples of a strip are scattered, in closed form. On a
  logarithmic scale, from one strip's length (0) to the whole epoch (1): every doubling counts alike.

The score is their geometric mean, so neither makes up for the other. Both grow with the shuffle block. It depends on
the order alone, never on ranks and batches. What it cannot see: what the samples are (if neighbours do not resemble
each other, any order will do), and which rank gets what. Below some hundred samples it is mostly chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.epoch import EpochOrder, rows_drawn
from streaming.order.nodes.assignment import Lanes, all_lanes
from streaming.order.sub_orders.runs import sum_of_run_squares
from streaming.order.sub_orders.sub_order import ShardUses

LONGEST_WINDOW: Final = 1000
N_PLACES: Final = 5
_FEWEST_STRIPS: Final = 32
_TICKS: Final = 1 << 20
"""Stretches of an epoch are counted in 2⁻²⁰ of it: fine enough, and a shard's number fits beside it in a word."""


@dataclass(frozen=True, slots=True)
class ShuffleScore:
    """The score of an order and what it is made of; all but the lengths between 0 and 1."""

    mixing_at: tuple[float, ...]
    """Mixing at equally spaced places of the epoch, from its first positions to its last."""
    spread: float
    strip: int
    """Samples in a strip."""
    window: int
    """Samples in a window."""

    @property
    def mixing(self) -> float:
        """The mean over all places."""
        return min(1.0, max(0.0, sum(self.mixing_at) / max(1, len(self.mixing_at))))

    @property
    def score(self) -> float:
        """0: the stored order; 1: no different from a full shuffle."""
        return math.sqrt(self.mixing * self.spread)


def shuffle_score(order: EpochOrder) -> ShuffleScore:
    """Measures an order. 1,000 positions are evaluated at each of five places; the rest is closed form.

    That takes 1.5 s for 10⁹ samples, and some hundredths of a second for 10⁶.
    """
    n = order.n_samples
    strip = max(2, min(int(typical_run(order)), n // _FEWEST_STRIPS))
    if n < 2 * strip:  # too short to tell: any order of three samples looks like any other
        return ShuffleScore((1.0,), 1.0, strip, n)
    window = max(2, min(LONGEST_WINDOW, n // strip))
    by_chance = _distinct_by_chance(order, strip, window)
    stored = 1 + (window - 1) / strip
    n_windows = min(LONGEST_WINDOW, n) // window
    mixing = []
    for place in range(N_PLACES):
        begin = (n - n_windows * window) * place // (N_PLACES - 1)
        strips = order.take(begin, begin + n_windows * window).reshape(n_windows, window) // strip
        distinct = 1 + np.count_nonzero(np.diff(np.sort(strips, axis=1), axis=1), axis=1).mean()
        mixing.append(float(distinct - stored) / max(by_chance - stored, 1e-9))
    if order.effective_algorithm is None:
        parts = [part.n_samples for part in order.parts if part.n_samples]
        scattered = np.array([strip * order.n_canonical_nodes * n / size for size in parts])
        weights = np.array(parts, np.float64)
    else:
        scattered = stretches(order, all_lanes(order)) * n
        weights = rows_drawn(order).astype(np.float64)
    doublings = np.log(np.clip(scattered / strip, 1.0, n / strip))
    spread = float((doublings * weights).sum() / weights.sum()) / math.log(n / strip)
    return ShuffleScore(tuple(mixing), min(1.0, spread), strip, window)


def typical_run(order: EpochOrder) -> float:
    """Samples that are read from a shard in one pass, as a sample sees it: Σz²/Σz over the runs of the epoch."""
    return sum_of_run_squares(order.catalog, order.drawn) / max(1, int(rows_drawn(order).sum()))


def stretches(order: EpochOrder, lanes: Lanes) -> NDArray[np.float64]:
    """For how much of the epoch each shard is in use by these canonical nodes, between its first sample and its last.

    float64 (shard,), each a fraction of the epoch; 0 for shards that are not read.
    """
    shards, begins, ends = intervals(order, lanes)
    lengths = np.bincount(shards, weights=(ends - begins) / _TICKS, minlength=order.catalog.n_shards)
    return lengths.astype(np.float64)


def most_at_once(order: EpochOrder, lanes: Lanes) -> int:
    """How many shards these canonical nodes have in use at once where they have most."""
    _, begins, ends = intervals(order, lanes)
    moments = np.concatenate([begins, ends])
    steps = np.repeat(np.array([1, -1]), len(begins))
    in_order = np.lexsort((steps, moments))  # a shard that ends where another begins makes room for it
    return int(np.cumsum(steps[in_order]).max(initial=0))


def intervals(order: EpochOrder, lanes: Lanes) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """When these canonical nodes have which shards in use: shard, begin and end in 2⁻²⁰ epochs, int64 (interval,) each.

    The intervals of one shard do not overlap.
    """
    tables = [
        _ticks(part.uses(mine), np.diff(part.grid.lane_start))
        for part, mine in zip(order.parts, lanes)
        if part.n_samples
    ]
    shards, begins, ends = (
        np.concatenate([np.zeros(0, np.int64), *(table[column] for table in tables)]) for column in range(3)
    )
    # One line for all shards, each with a stretch of its own: then a running maximum finds what overlaps.
    width = _TICKS + 1
    order_of_begins = np.argsort(shards * width + begins, kind="stable")
    shards, begins, ends = shards[order_of_begins], begins[order_of_begins], ends[order_of_begins]
    reached = np.maximum.accumulate(shards * width + ends) - shards * width
    before = np.concatenate([np.zeros(min(1, len(shards)), np.int64), reached[:-1]])
    same = np.concatenate([np.zeros(min(1, len(shards)), np.bool_), shards[1:] == shards[:-1]])
    begins = np.where(same, np.maximum(begins, before), begins)
    some = ends > begins
    return shards[some], begins[some], ends[some]


def _ticks(uses: ShardUses, lane_sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    sizes = np.maximum(1, lane_sizes[uses.lane]).astype(np.float64)
    ends = np.minimum(uses.likely_end, uses.end)
    begins_at = np.clip(np.floor(uses.first / sizes * _TICKS), 0, _TICKS)
    ends_at = np.clip(np.ceil(ends / sizes * _TICKS), 0, _TICKS)
    return uses.shard, begins_at.astype(np.int64), ends_at.astype(np.int64)


def _distinct_by_chance(order: EpochOrder, strip: int, window: int) -> float:
    """How many strips a window of a full shuffle holds on average: draws without replacement."""
    n, distinct = order.n_samples, 0.0
    for stored, drawn in zip(order.catalog.samples_per_stream.tolist(), order.draws.tolist()):
        if drawn:
            in_strip = strip * drawn / stored
            missed = max(0.0, 1 - window / max(1.0, n - (in_strip - 1) / 2)) ** in_strip
            distinct += stored / strip * (1 - missed)
    return distinct
