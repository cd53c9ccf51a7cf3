"""What an epoch is made of: runs, stretches of rows of one shard that are read in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.catalog import Catalog

MOST_ROWS_PER_RUN: Final = 1 << 20
"""Longer runs are laid as consecutive runs, so that a window of the order stays small."""

MOST_RUNS: Final = 1 << 26


@dataclass(frozen=True, eq=False, slots=True)
class Runs:
    """A table of runs, each column int64 (run,): rows `first_row .. first_row + n_rows - 1` of `shard`, in a pass."""

    shard: NDArray[np.int64]
    pass_number: NDArray[np.int64]
    first_row: NDArray[np.int64]
    n_rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

    def pick(self, which: NDArray[np.int64] | slice) -> Runs:
        """These runs, in this order."""
        return Runs(self.shard[which], self.pass_number[which], self.first_row[which], self.n_rows[which])


def lay_runs(catalog: Catalog, passes: NDArray[np.int64], shards: NDArray[np.int64]) -> Runs:
    """The runs of these shards, shard by shard, pass by pass, piece by piece.

    `passes`: how often each shard of the catalog is read whole, int64 (shard,). `shards`: which, int64 (any,).
    """
    sizes = catalog.shard_sizes[shards]
    pieces = -(-sizes // MOST_ROWS_PER_RUN)
    counts = passes[shards] * pieces
    if int(counts.sum()) > MOST_RUNS:
        raise OptionError(
            f"an epoch would have {int(counts.sum())} runs (passes over shards, in pieces of {MOST_ROWS_PER_RUN}); "
            f"at most {MOST_RUNS} are possible: lower the weights of small streams"
        )
    which = np.repeat(np.arange(len(shards)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    pass_number, piece = np.divmod(within, pieces[which])
    first_row = piece * MOST_ROWS_PER_RUN
    return Runs(shards[which], pass_number, first_row, np.minimum(sizes[which] - first_row, MOST_ROWS_PER_RUN))


def sum_of_run_squares(catalog: Catalog, passes: NDArray[np.int64]) -> int:
    """Σ z² over all runs that `lay_runs` would lay, exactly, without laying them."""
    n_full, rest = np.divmod(catalog.shard_sizes, MOST_ROWS_PER_RUN)
    total = int((passes * n_full).sum()) * MOST_ROWS_PER_RUN**2
    return total + sum(int(p) * sum_of_squares(rest[passes == p]) for p in np.unique(passes))


def sum_of_squares(values: NDArray[np.int64]) -> int:
    """Σ v² exactly, for non-negative int64 of any size: floats would round, and not alike everywhere."""
    limbs = [(values >> np.int64(shift)) & np.int64(0xFFFF) for shift in (0, 16, 32, 48)]
    return sum(int((a * b).sum()) << (16 * (i + j)) for i, a in enumerate(limbs) for j, b in enumerate(limbs))
