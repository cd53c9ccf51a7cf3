"""Which row of a shard a place in a run stands for.

In a whole pass this is the row itself, unless the shuffle permutes the rows of every shard. In a partial pass a piece
gives a keyed random subset of its rows, in segments of `granularity` neighbouring rows. The rows are laid on a ring
that begins at a keyed place and are cut into whole segments and a rest. The segments come in keyed random order, the
rest last, and the first rows are taken. So each row is equally likely, and is found in closed form. Without shuffle the
subset is put in stored order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.bijection import ROUNDS, permuted
from streaming.order.bits import bits, chained_bits
from streaming.order.catalog import Catalog
from streaming.order.sub_orders.runs import PIECE_BITS, Drawn

_KEPT_ROWS: Final = 1 << 22
_RING_START: Final = ROUNDS << 32
"""A counter that no round of a permutation uses."""


@dataclass(frozen=True, eq=False, slots=True)
class RowChoice:
    """What decides which rows a sub-order reads. `catalog` and `drawn` are those of the epoch."""

    catalog: Catalog
    drawn: Drawn
    granularity: int
    sample_key: int
    permute_key: int | None
    """The key that permutes the rows of every shard; None leaves them in place."""
    in_stored_order: bool
    """Whether the subset of a partial pass comes in stored order."""


class RowReader:
    """Finds rows. Owns the subsets that it has sorted. For one thread."""

    def __init__(self, choice: RowChoice) -> None:
        self._choice = choice
        self._sorted: dict[int, NDArray[np.int32]] = {}
        self._n_sorted = 0

    def ids(
        self, ids: NDArray[np.int64], shards: NDArray[np.int64], pass_numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return sample ids, given the ids if every place stood for its own row. All int64 (sample,)."""
        choice = self._choice
        first = choice.catalog.first_sample[shards]
        rows = ids - first
        sampled = np.flatnonzero(pass_numbers == choice.drawn.passes[shards]) if choice.drawn.samples_any else None
        if choice.permute_key is not None:
            rows = self._permuted(rows, shards, pass_numbers, sampled)
        if sampled is not None and len(sampled):
            rows[sampled] = self._sampled(rows[sampled], shards[sampled])
        rows += first
        return rows

    def _permuted(
        self,
        rows: NDArray[np.int64],
        shards: NDArray[np.int64],
        pass_numbers: NDArray[np.int64],
        sampled: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        """Permute the rows of whole passes within their shard, those of partial passes within what a piece gives."""
        choice = self._choice
        assert choice.permute_key is not None
        keys = chained_bits(bits(choice.permute_key, shards), pass_numbers)
        n = choice.catalog.shard_sizes[shards]
        base = np.zeros(len(rows), np.int64)
        if sampled is not None:
            pieces = rows[sampled] >> PIECE_BITS
            base[sampled] = pieces << PIECE_BITS
            n[sampled] = choice.drawn.sampled[choice.drawn.first_piece[shards[sampled]] + pieces]
        return base + permuted(rows - base, n, keys)

    def _sampled(self, rows: NDArray[np.int64], shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of places in partial passes, (sample,). A place counts through the subset of its piece."""
        choice = self._choice
        pieces, within = rows >> PIECE_BITS, rows & ((1 << PIECE_BITS) - 1)
        base = pieces << PIECE_BITS
        if not choice.in_stored_order:
            return base + self._in_keyed_order(within, shards, pieces)
        numbers = choice.drawn.first_piece[shards] + pieces
        chosen = np.empty(len(rows), np.int64)
        # In stored order, few pieces are read at a time.
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            chosen[mine] = self._subset(number, int(shards[mine[0]]), int(pieces[mine[0]]))[within[mine]]
        return base + chosen

    def _in_keyed_order(
        self, within: NDArray[np.int64], shards: NDArray[np.int64], pieces: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        choice = self._choice
        n_rows = np.minimum(choice.catalog.shard_sizes[shards] - (pieces << PIECE_BITS), 1 << PIECE_BITS)
        keys = chained_bits(bits(choice.sample_key, shards), pieces)
        if choice.granularity == 1:
            return permuted(within, n_rows, keys)
        n_segments = n_rows // choice.granularity
        segment = within // choice.granularity
        offset = within - segment * choice.granularity
        whole = segment < n_segments  # the others lie in the rest, which stays last
        segment[whole] = permuted(segment[whole], n_segments[whole], keys[whole])
        start = chained_bits(keys, np.full(len(keys), _RING_START)) >> np.uint64(32)
        start = (start * n_rows.astype(np.uint64)) >> np.uint64(32)
        return (start.astype(np.int64) + segment * choice.granularity + offset) % n_rows

    def _subset(self, number: int, shard: int, piece: int) -> NDArray[np.int32]:
        """Return the rows that a piece gives, in stored order and counted from its first row: int32 (row,)."""
        subset = self._sorted.pop(number, None)
        if subset is None:
            n_rows = int(self._choice.drawn.sampled[number])
            every = np.arange(n_rows, dtype=np.int64)
            subset = np.sort(self._in_keyed_order(every, np.full(n_rows, shard), np.full(n_rows, piece)))
            subset = subset.astype(np.int32)
            self._n_sorted += n_rows
        self._sorted[number] = subset  # the last used is the last to be dropped
        while self._n_sorted > _KEPT_ROWS and len(self._sorted) > 1:
            self._n_sorted -= len(self._sorted.pop(next(iter(self._sorted))))
        return subset
