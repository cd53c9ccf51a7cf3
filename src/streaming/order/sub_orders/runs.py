"""What an epoch is made of: runs, stretches of rows of one shard that are read in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.catalog import Catalog

PIECE_BITS: Final = 20
MOST_ROWS_PER_RUN: Final = 1 << PIECE_BITS
"""Longer runs are laid as consecutive runs, so that a window of the order stays small. Such a piece of a shard is also
what gives rows to a part of a pass."""

MOST_RUNS: Final = 1 << 26


@dataclass(frozen=True, eq=False, slots=True)
class Drawn:
    """What an epoch reads of each shard."""

    passes: NDArray[np.int64]
    """How often the shard is read whole, int64 (shard,)."""
    sampled: NDArray[np.int64]
    """Rows that each piece gives to one more pass, int64 (piece,); no pieces if no stream has such a part of a pass."""
    first_piece: NDArray[np.int64]
    """The number of each shard's first piece, int64 (shard + 1,); zeros if there are no pieces."""

    @classmethod
    def whole(cls, passes: NDArray[np.int64]) -> Drawn:
        """Nothing but whole passes."""
        return cls(passes, np.zeros(0, np.int64), np.zeros(len(passes) + 1, np.int64))

    @property
    def samples_any(self) -> bool:
        """Whether any stream has a part of a pass."""
        return len(self.sampled) > 0

    def rows(self, catalog: Catalog) -> NDArray[np.int64]:
        """Rows that each shard gives to the epoch in all, int64 (shard,)."""
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sampled)])
        return self.passes * catalog.shard_sizes + np.diff(ends[self.first_piece])


@dataclass(frozen=True, eq=False, slots=True)
class Runs:
    """A table of runs, each column int64 (run,): rows `first_row .. first_row + n_rows - 1` of `shard`, in a pass.

    In the part of a pass that follows the whole ones, where a piece gives a subset of its rows, a row is a place in
    that subset, from the piece's first row on.
    """

    shard: NDArray[np.int64]
    pass_number: NDArray[np.int64]
    first_row: NDArray[np.int64]
    n_rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

    def pick(self, which: NDArray[np.int64] | slice) -> Runs:
        """These runs, in this order."""
        return Runs(self.shard[which], self.pass_number[which], self.first_row[which], self.n_rows[which])


def lay_runs(catalog: Catalog, drawn: Drawn, shards: NDArray[np.int64]) -> Runs:
    """The runs of these shards, shard by shard, pass by pass, piece by piece. `shards`: int64 (any,)."""
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
    # Stable, and whole passes first: each shard's part of a pass follows them.
    order = np.argsort(np.concatenate([which, number]), kind="stable")
    both = (whole.shard, whole.pass_number, whole.first_row, whole.n_rows)
    return Runs(*(np.concatenate(pair)[order] for pair in zip(both, columns)))


def check_run_count(n_runs: int) -> None:
    """Raises OptionError if an epoch would have more runs than there is room for."""
    if n_runs > MOST_RUNS:
        raise OptionError(
            f"an epoch would have {n_runs} runs (passes over shards, in pieces of {MOST_ROWS_PER_RUN}); "
            f"at most {MOST_RUNS} are possible: lower the weights of small streams"
        )


def sum_of_run_squares(catalog: Catalog, drawn: Drawn) -> int:
    """Σ z² over all runs that `lay_runs` would lay, exactly, without laying them."""
    n_full = catalog.shard_sizes // MOST_ROWS_PER_RUN
    rest = catalog.shard_sizes - n_full * MOST_ROWS_PER_RUN
    whole = int((drawn.passes * n_full).sum()) * MOST_ROWS_PER_RUN**2 + sum_of_products(drawn.passes, rest * rest)
    return whole + sum_of_squares(drawn.sampled)


def sum_of_squares(values: NDArray[np.int64]) -> int:
    """Σ v² exactly, for non-negative int64 of any size: floats would round, and not alike everywhere."""
    return sum_of_products(values, values)


def sum_of_products(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Σ vw exactly, for non-negative int64 of any size, up to 2³¹ of them."""
    limbs_of_right = _limbs(right)
    return sum(
        int((a * b).sum()) << 16 * (i + j) for i, a in enumerate(_limbs(left)) for j, b in enumerate(limbs_of_right)
    )


def _limbs(values: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Values in digits of 16 bits, the lowest first, as many as the largest needs."""
    n_bits = int(values.max(initial=0)).bit_length()
    return [(values >> np.int64(shift)) & np.int64(0xFFFF) for shift in range(0, n_bits, 16)]


def _ragged(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Counting through lists of these lengths: which list, and which number in it. (list,) -> two of (entry,)."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
