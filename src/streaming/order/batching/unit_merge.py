"""Several sub-orders merged by units of consecutive samples, as a function of the number of the unit.

The whole units are merged evenly, in the way `EvenMerge` merges samples. When shuffling, each block of 2¹² units of the
merge is put in keyed random order; the units of one sub-order keep their order. Samples that fill no unit are left out.

Unit t of a sub-order with `stride` canonical nodes lies in the canonical node of residue `t mod stride`, where it is
number `t div stride`. A stride of 1 stands for units that are consecutive in the sub-order, however many canonical
nodes it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching.even_merge import EvenMerge
from streaming.order.bits import Purpose, bits_between, derive_key, smallest_type

BLOCK_BITS: Final = 12
_BLOCK: Final = 1 << BLOCK_BITS
_NUMBERS: Final = np.arange(_BLOCK, dtype=np.uint16)
_MOST_KEPT: Final = 256
"""Blocks of 12 KB each: as many as one call may look at, where readers are far apart."""


@dataclass(frozen=True, eq=False, slots=True)
class _Block:
    """The units of a block in order: the sub-order of each, and its number among the block's units of it, (unit,)."""

    sub_orders: NDArray[np.integer[Any]]
    numbers: NDArray[np.uint16]
    before: NDArray[np.int64]
    """Units of each sub-order before the block, int64 (sub-order,)."""


class UnitMerge:
    """The merge of sub-orders that have `n_units` units of `unit` samples. Shareable between threads."""

    def __init__(self, n_units: list[int], unit: int, strides: list[int], key: int | None) -> None:
        """`key`: permutes the units of a block; None leaves them in order."""
        self.unit = unit
        self.n_units = n_units
        self.strides = np.array(strides, np.int64)
        self._merge = EvenMerge(n_units)
        self._key = key
        self._kept: dict[int, _Block] = {}
        self._kept_before: dict[int, _Block] = {}

    @classmethod
    def of(cls, lengths: list[int], unit: int, strides: list[int], seed: int, epoch: int, shuffle: bool) -> UnitMerge:
        """Merge the whole units of sub-orders with these lengths."""
        n_units = [whole_units(n, unit, stride) for n, stride in zip(lengths, strides)]
        return cls(n_units, unit, strides, derive_key(seed, epoch, Purpose.UNIT_ORDER) if shuffle else None)

    @property
    def n_positions(self) -> int:
        """See Interleave."""
        return sum(self.n_units) * self.unit

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See Interleave."""
        units = positions // self.unit
        sub_orders, numbers = self.find_units(units)
        strides = self.strides[sub_orders]
        rounds = numbers // strides
        within = rounds * self.unit + (positions - units * self.unit)
        return sub_orders, within * strides + (numbers - rounds * strides)

    def counts(self, position: int) -> list[int]:
        """See Interleave; up to one round of units too low where units lie in several canonical nodes."""
        counts = self.unit_counts(position // self.unit)
        return [n // stride * stride * self.unit for n, stride in zip(counts, self.strides.tolist())]

    def find_units(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sub-order of each unit and its number there. int64 (unit,) -> two of (unit,)."""
        if self._key is None or not len(units):
            return self._merge.find(units)
        blocks = units >> BLOCK_BITS
        steps = np.diff(blocks)
        if steps.min(initial=0) < 0:
            sub_orders, numbers = np.empty(len(units), np.int64), np.empty(len(units), np.int64)
            in_order = np.argsort(blocks, kind="stable")
            sub_orders[in_order], numbers[in_order] = self.find_units(units[in_order])
            return sub_orders, numbers
        found = [self._find_in_block(piece) for piece in np.split(units, np.flatnonzero(steps) + 1)]
        sub_orders, numbers = (np.concatenate(column) for column in zip(*found))
        return sub_orders, numbers

    def unit_counts(self, n_first: int) -> list[int]:
        """Count the units of each sub-order among the first `n_first`."""
        if self._key is None:
            return self._merge.counts(n_first)
        number = n_first >> BLOCK_BITS
        counts = np.array(self._merge.counts(number << BLOCK_BITS), np.int64)
        n_more = n_first - (number << BLOCK_BITS)
        if n_more:
            counts += np.bincount(self._block(number).sub_orders[:n_more], minlength=len(counts))
        return [int(n) for n in counts]

    def _find_in_block(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Like `find_units`, for at least one unit, all in one block."""
        number = int(units[0]) >> BLOCK_BITS
        block = self._block(number)
        within = units - (number << BLOCK_BITS)
        sub_orders = block.sub_orders[within].astype(np.int64)
        return sub_orders, block.before[sub_orders] + block.numbers[within]

    def _block(self, number: int) -> _Block:
        block = self._kept.get(number) or self._kept_before.get(number)
        if block is None:
            block = self._make_block(number)
            if len(self._kept) >= _MOST_KEPT:
                self._kept_before, self._kept = self._kept, {}
            # If two threads make a block, both make the same one.
            self._kept[number] = block
        return block

    def _make_block(self, number: int) -> _Block:
        assert self._key is not None
        start, stop = number << BLOCK_BITS, min((number + 1) << BLOCK_BITS, sum(self.n_units))
        before = np.array(self._merge.counts(start), np.int64)
        n_here = np.array(self._merge.counts(max(start, stop)), np.int64) - before
        n = max(0, stop - start)
        sub_orders = np.repeat(np.arange(len(before), dtype=smallest_type(len(before))), n_here)
        # The lowest bits hold the place in the block: a plain sort of words is far faster than an argsort.
        words = bits_between(self._key, start, start + n)
        words &= ~np.uint64(_BLOCK - 1)
        words |= _NUMBERS[:n]
        words.sort()
        words &= np.uint64(_BLOCK - 1)
        sub_orders = sub_orders[words.view(np.int64)]
        # The units of each sub-order keep their order.
        numbers = np.empty(n, np.uint16)
        numbers[np.argsort(sub_orders, kind="stable")] = _NUMBERS[:n] - np.repeat(np.cumsum(n_here) - n_here, n_here)
        return _Block(sub_orders, numbers, before)


def whole_units(n: int, unit: int, stride: int) -> int:
    """Count the units that lie wholly in one of the `stride` canonical nodes of a sub-order of `n` samples."""
    each, n_longer = divmod(n, stride)
    return stride * (each // unit) + (n_longer if (each + 1) % unit == 0 else 0)
