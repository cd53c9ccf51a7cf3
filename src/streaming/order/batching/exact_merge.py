"""Several sub-orders merged so that every batch has the same whole number of samples of each.

A *composition* says how many samples of each sub-order a batch has, in lowest terms: 24 and 8 of 32 are 3 : 1. It is
the unit by which an epoch goes on, so batches of 32 and of 4 read one order, and a run may resume with either. What
exceeds the composition in a sub-order is left out of the epoch.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError


class ExactMerge:
    """The merge of sub-orders of these lengths: unit after unit, in each `composition[i]` samples of sub-order i."""

    def __init__(self, lengths: list[int], composition: list[int]) -> None:
        self.composition = composition
        self.unit: int = max(1, sum(composition))
        self.n_units: int = min((n // share for n, share in zip(lengths, composition) if share), default=0)
        self._shares = np.array(composition, np.int64)
        self._first = np.cumsum(self._shares) - self._shares
        self._sub_orders = np.repeat(np.arange(len(composition), dtype=np.int64), self._shares)

    @property
    def n_positions(self) -> int:
        """See Interleave."""
        return self.n_units * self.unit

    @property
    def n_read(self) -> list[int]:
        """Samples of each sub-order that the epoch reads."""
        return [self.n_units * share for share in self.composition]

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See Interleave."""
        if not len(self._sub_orders):
            return np.zeros(len(positions), np.int64), positions
        units = positions // self.unit
        within = positions - units * self.unit
        sub_orders = self._sub_orders[within]
        return sub_orders, units * self._shares[sub_orders] + within - self._first[sub_orders]

    def positions(self, sub_order: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of samples of one sub-order: the inverse of `find`. int64 (index,) -> int64 (index,)."""
        share = self.composition[sub_order]
        units = indices // share
        positions: NDArray[np.int64] = units * (self.unit - share) + indices + self._first[sub_order]
        return positions

    def counts(self, position: int) -> list[int]:
        """See Interleave."""
        units, within = divmod(position, self.unit)
        begun = np.clip(within - self._first, 0, self._shares)
        return [units * share + more for share, more in zip(self.composition, begun.tolist())]


def composition_of(draws: list[int], batch_size: int) -> list[int]:
    """Return how many samples of each stream a batch of `batch_size` has, in lowest terms.

    They follow the `draws` as whole numbers can: each share is rounded down, and the largest rests, of equal ones that
    of the smallest stream, are rounded up. Raises OptionError if a stream that gives samples would give none to a
    batch.
    """
    total = sum(draws)
    if not total:
        return [0] * len(draws)
    counts = [n * batch_size // total for n in draws]
    by_rest = sorted(
        range(len(draws)), key=lambda stream: (-(draws[stream] * batch_size % total), draws[stream], stream)
    )
    for stream in by_rest[: batch_size - sum(counts)]:
        counts[stream] += 1
    for stream, (n, count) in enumerate(zip(draws, counts)):
        if n and not count:
            enough = math.ceil(Fraction(total, min(n for n in draws if n)))
            raise OptionError(
                f"batch_composition='exact': stream {stream} gives {n:,} of the {total:,} samples of an epoch. That is "
                f"{n * batch_size / total:.2g} samples of a batch of {batch_size}, so a batch would have none. With "
                f"batch_size={enough} it has samples of all streams; or raise the weight of this one, or leave it out"
            )
    divisor = math.gcd(*counts)
    return [count // divisor for count in counts]
