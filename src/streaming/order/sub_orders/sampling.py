"""From draws to rows: how often each shard is read whole, and how many rows a partial pass takes from it.

A partial pass is drawn by systematic sampling. The pieces of shards, in keyed random order, are cut into picks of
`granularity` rows (the last pick of a piece may be shorter). Of these P picks, K are taken at equal steps from a keyed
phase. They hold about as many rows as wanted; what short picks leave over or lack is settled in the same order of
pieces. So the total is exact, every pick is equally likely, and the cost is O(shards).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import Purpose, bits, derive_key, keyed_order
from streaming.order.catalog import Catalog
from streaming.order.sub_orders.runs import MOST_ROWS_PER_RUN, Drawn, check_run_count

SAMPLINGS: Final = ("balanced", "fixed")


@dataclass(frozen=True, slots=True)
class Sampling:
    """What decides the partial passes: the keys, and `granularity` rows in a pick."""

    seed: int
    epoch: int
    """-1: the draw is the same in all epochs."""
    granularity: int

    @classmethod
    def of(cls, seed: int, method: str, epoch: int, granularity: int) -> Sampling:
        """Make the sampling of an epoch. `balanced` draws anew in every epoch, `fixed` draws once."""
        return cls(seed, -1 if method == "fixed" else epoch, granularity)

    @property
    def row_key(self) -> int:
        """The key that decides which rows of a shard are read."""
        return derive_key(self.seed, self.epoch, Purpose.SAMPLED_ROWS)


def draw(catalog: Catalog, draws: NDArray[np.int64], sampling: Sampling) -> Drawn:
    """Return how much of each shard an epoch reads. `draws`: samples that each stream gives, int64 (stream,)."""
    sizes = np.maximum(catalog.samples_per_stream, 1)
    passes, rest = draws // sizes, draws % sizes
    per_shard: NDArray[np.int64] = np.where(catalog.shard_sizes > 0, passes[catalog.stream_of_shard], 0)
    if not rest.any():
        return Drawn.whole(per_shard)
    n_pieces = -(-catalog.shard_sizes // MOST_ROWS_PER_RUN)
    check_run_count(int(n_pieces.sum()))
    first_piece = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_pieces)])
    shard = np.repeat(np.arange(catalog.n_shards, dtype=np.int64), n_pieces)
    first_row = (np.arange(len(shard)) - first_piece[shard]) * MOST_ROWS_PER_RUN
    n_rows = np.minimum(catalog.shard_sizes[shard] - first_row, MOST_ROWS_PER_RUN)
    ends = first_piece[np.cumsum(catalog.shards_per_stream)]
    sampled = np.zeros(len(shard), np.int64)
    for stream, (start, stop) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist())):
        wanted = int(rest[stream])
        if not wanted:
            continue
        key = derive_key(sampling.seed, sampling.epoch, stream, Purpose.SAMPLE)
        order = start + keyed_order(bits(key, shard[start:stop]))
        sampled[order] = _pick(n_rows[order], wanted, min(sampling.granularity, MOST_ROWS_PER_RUN), key)
    return Drawn(per_shard, sampled, first_piece)


def _pick(n_rows: NDArray[np.int64], wanted: int, granularity: int, key: int) -> NDArray[np.int64]:
    """Return how many rows each piece gives, `wanted` in all, which is fewer than all rows. (piece,) -> (piece,)."""
    n_picks = -(-n_rows // granularity)
    p = int(n_picks.sum())
    k = -(-wanted * p // int(n_rows.sum()))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_picks)])
    taken: NDArray[np.int64] = np.minimum(np.diff(_scaled(ends, k, p, derive_key(key, 1) % p)) * granularity, n_rows)
    # Each turn moves up to one pick per piece, so few turns suffice, and one if all picks are equal.
    while missing := wanted - int(taken.sum()):
        room = np.minimum(n_rows - taken if missing > 0 else taken, granularity)
        moved = np.clip(abs(missing) - (np.cumsum(room) - room), 0, room)
        taken += moved if missing > 0 else -moved
    return taken


def _scaled(values: NDArray[np.int64], k: int, p: int, phase: int) -> NDArray[np.int64]:
    """Return floor((v × k + phase) / p) for each v, exactly. Neither v nor k is above p."""
    if p * (k + 1) >= 1 << 63:  # from 3 × 10⁹ picks on: slower, but as exact
        exact: NDArray[np.int64] = ((values.astype(object) * k + phase) // p).astype(np.int64)
        return exact
    scaled: NDArray[np.int64] = (values * k + phase) // p
    return scaled
