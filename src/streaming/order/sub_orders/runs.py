"""Runs, of which an epoch is made: a run is a segment of the rows of one shard, read in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.catalog import Catalog

PIECE_BITS: Final = 20
MOST_ROWS_PER_RUN: Final = 1 << PIECE_BITS
"""Longer runs are cut into consecutive runs, so that a window of the order stays small. A shard consists of *pieces* of
this length, each of which gives rows to a partial pass."""

MOST_RUNS: Final = 1 << 26


@dataclass(frozen=True, eq=False, slots=True)
class Drawn:
    """How much of each shard an epoch reads: whole passes, and perhaps a partial one."""

    passes: NDArray[np.int64]
    """Whole passes over each shard, int64 (shard,)."""
    sampled: NDArray[np.int64]
    """Rows that each piece gives to a partial pass, int64 (piece,). Empty if no stream has a partial pass."""
    first_piece: NDArray[np.int64]
    """Number of the first piece of each shard, int64 (shard + 1,); zeros if no stream has a partial pass."""

    @classmethod
    def whole(cls, passes: NDArray[np.int64]) -> Drawn:
        """Make a draw of whole passes only."""
        return cls(passes, np.zeros(0, np.int64), np.zeros(len(passes) + 1, np.int64))

    @property
    def samples_any(self) -> bool:
        """Whether any stream has a partial pass."""
        return len(self.sampled) > 0

    def rows(self, catalog: Catalog) -> NDArray[np.int64]:
        """Return the rows that each shard gives to the epoch in all, int64 (shard,)."""
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sampled)])
        return self.passes * catalog.shard_sizes + np.diff(ends[self.first_piece])


@dataclass(frozen=True, eq=False, slots=True)
class Runs:
    """A table of runs, int64 (run,) each: rows `first_row .. first_row + n_rows - 1` of `shard`, in one pass.

    In the partial pass, which follows the whole ones, a piece gives a subset of its rows. There a "row" is a place in
    this subset, counted from the first row of the piece.
    """

    shard: NDArray[np.int64]
    pass_number: NDArray[np.int64]
    first_row: NDArray[np.int64]
    n_rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

    def pick(self, which: NDArray[np.int64] | slice) -> Runs:
        """Return these runs, in this order."""
        return Runs(self.shard[which], self.pass_number[which], self.first_row[which], self.n_rows[which])


def lay_runs(catalog: Catalog, drawn: Drawn, shards: NDArray[np.int64]) -> Runs:
    """Return the runs of `shards`, int64 (any,), shard by shard, pass by pass, piece by piece."""
    sizes = catalog.shard_sizes[shards]
    pieces = -(-sizes // MOST_ROWS_PER_RUN)
    counts = drawn.passes[shards] * pieces
    check_run_count(int(counts.sum()) + len(drawn.sampled))
    which, within = _ragged(counts)
    pass_number, piece = np.divmod(within, pieces[which])
    first_row = piece * MOST_ROWS_PER_RUN
    whole = Runs(shards[which], pass_number, first_row, np.minimum(sizes[which] - first_row, MOST_ROWS_PER_RUN))
    if not drawn.samples_any:
        return whole
    number, piece = _ragged(np.diff(drawn.first_piece)[shards])
    n_rows = drawn.sampled[drawn.first_piece[shards[number]] + piece]
    number, piece, n_rows = number[n_rows > 0], piece[n_rows > 0], n_rows[n_rows > 0]
    columns = (shards[number], drawn.passes[shards[number]], piece * MOST_ROWS_PER_RUN, n_rows)
    # A stable sort, with whole passes first: the partial pass of each shard follows them.
    order = np.argsort(np.concatenate([which, number]), kind="stable")
    both = (whole.shard, whole.pass_number, whole.first_row, whole.n_rows)
    return Runs(*(np.concatenate(pair)[order] for pair in zip(both, columns)))


def check_run_count(n_runs: int) -> None:
    """Raise OptionError if an epoch would have more runs than are possible."""
    if n_runs > MOST_RUNS:
        raise OptionError(
            f"an epoch would have {n_runs} runs (passes over shards, in pieces of {MOST_ROWS_PER_RUN}); "
            f"at most {MOST_RUNS} are possible: lower the weights of small streams"
        )


def sum_of_run_squares(catalog: Catalog, drawn: Drawn) -> int:
    """Return Σ z² over all runs of an epoch, exactly, without making the runs."""
    n_full = catalog.shard_sizes // MOST_ROWS_PER_RUN
    rest = catalog.shard_sizes - n_full * MOST_ROWS_PER_RUN
    whole = int((drawn.passes * n_full).sum()) * MOST_ROWS_PER_RUN**2 + sum_of_products(drawn.passes, rest * rest)
    return whole + sum_of_squares(drawn.sampled)


def sum_of_squares(values: NDArray[np.int64]) -> int:
    """Return Σ v² exactly, for any non-negative int64. Floats would round, and differently on different platforms."""
    return sum_of_products(values, values)


def sum_of_products(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Return Σ vw exactly, for up to 2³¹ non-negative int64 of any size."""
    limbs_of_right = _limbs(right)
    return sum(
        int((a * b).sum()) << 16 * (i + j) for i, a in enumerate(_limbs(left)) for j, b in enumerate(limbs_of_right)
    )


def _limbs(values: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split values into digits of 16 bits, lowest first, as many as the largest value needs."""
    n_bits = int(values.max(initial=0)).bit_length()
    return [(values >> np.int64(shift)) & np.int64(0xFFFF) for shift in range(0, n_bits, 16)]


def _ragged(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the list and the number in it of every entry of lists of these lengths. (list,) -> two of (entry,)."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
