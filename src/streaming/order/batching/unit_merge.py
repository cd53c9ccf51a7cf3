"""Several orders merged by units of consecutive samples; which order a unit is of, is a function of its number.

The numbers of whole units are merged evenly, as samples are by `EvenMerge`. When shuffling, every 2¹² units that so
come together take turns in keyed random order; the units of one order stay in theirs. What fills no unit is left out.

Unit t of an order with `stride` canonical nodes lies in that of residue `t mod stride`, where it is number
`t div stride`; a stride of 1 stands for units that are consecutive in the order, whatever its canonical nodes.
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
"""Blocks, 12 KB each: as many as one call may look at, where readers are far apart."""


@dataclass(frozen=True, eq=False, slots=True)
class _Block:
    """The units of a block in order: which order each is of, and its number among those of it here, (unit,) each."""

    parts: NDArray[np.integer[Any]]
    numbers: NDArray[np.uint16]
    before: NDArray[np.int64]
    """How many units of each order lie before the block, int64 (order,)."""


class UnitMerge:
    """The merge of orders with `n_units` units of `unit` samples each. Shareable between threads."""

    def __init__(self, n_units: list[int], unit: int, strides: list[int], key: int | None) -> None:
        """`key`: what permutes the units of a block; None without shuffle."""
        self.unit = unit
        self.n_units = n_units
        self.strides = np.array(strides, np.int64)
        self._merge = EvenMerge(n_units)
        self._key = key
        self._kept: dict[int, _Block] = {}
        self._kept_before: dict[int, _Block] = {}

    @classmethod
    def of(cls, lengths: list[int], unit: int, strides: list[int], seed: int, epoch: int, shuffle: bool) -> UnitMerge:
        """The merge of the whole units of orders with these lengths."""
        n_units = [whole_units(n, unit, stride) for n, stride in zip(lengths, strides)]
        return cls(n_units, unit, strides, derive_key(seed, epoch, Purpose.UNIT_ORDER) if shuffle else None)

    @property
    def n_positions(self) -> int:
        """See Interleave."""
        return sum(self.n_units) * self.unit

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See Interleave."""
        units = positions // self.unit
        parts, numbers = self.find_units(units)
        strides = self.strides[parts]
        rounds = numbers // strides
        within = rounds * self.unit + (positions - units * self.unit)
        return parts, within * strides + (numbers - rounds * strides)

    def counts(self, position: int) -> list[int]:
        """See Interleave; where units lie in several canonical nodes, up to a round of units early."""
        counts = self.unit_counts(position // self.unit)
        return [n // stride * stride * self.unit for n, stride in zip(counts, self.strides.tolist())]

    def find_units(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The order that each unit is of, and its number there. int64 (unit,) -> two of the same."""
        if self._key is None or not len(units):
            return self._merge.find(units)
        blocks = units >> BLOCK_BITS
        steps = np.diff(blocks)
        if steps.min(initial=0) < 0:
            parts, numbers = np.empty(len(units), np.int64), np.empty(len(units), np.int64)
            in_order = np.argsort(blocks, kind="stable")
            parts[in_order], numbers[in_order] = self.find_units(units[in_order])
            return parts, numbers
        found = [self._find_in_block(piece) for piece in np.split(units, np.flatnonzero(steps) + 1)]
        parts, numbers = (np.concatenate(column) for column in zip(*found))
        return parts, numbers

    def unit_counts(self, n_first: int) -> list[int]:
        """How many of the first `n_first` units are of each order."""
        if self._key is None:
            return self._merge.counts(n_first)
        number = n_first >> BLOCK_BITS
        counts = np.array(self._merge.counts(number << BLOCK_BITS), np.int64)
        n_more = n_first - (number << BLOCK_BITS)
        if n_more:
            counts += np.bincount(self._block(number).parts[:n_more], minlength=len(counts))
        return [int(n) for n in counts]

    def _find_in_block(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same for units of one block, at least one."""
        number = int(units[0]) >> BLOCK_BITS
        block = self._block(number)
        within = units - (number << BLOCK_BITS)
        parts = block.parts[within].astype(np.int64)
        return parts, block.before[parts] + block.numbers[within]

    def _block(self, number: int) -> _Block:
        block = self._kept.get(number) or self._kept_before.get(number)
        if block is None:
            block = self._make_block(number)
            if len(self._kept) >= _MOST_KEPT:
                self._kept_before, self._kept = self._kept, {}
            # Made twice by two threads, a block is the same.
            self._kept[number] = block
        return block

    def _make_block(self, number: int) -> _Block:
        assert self._key is not None
        start, stop = number << BLOCK_BITS, min((number + 1) << BLOCK_BITS, sum(self.n_units))
        before = np.array(self._merge.counts(start), np.int64)
        n_here = np.array(self._merge.counts(max(start, stop)), np.int64) - before
        n = max(0, stop - start)
        parts = np.repeat(np.arange(len(before), dtype=smallest_type(len(before))), n_here)
        # The lowest bits make room for the place in the block: a plain sort of words, far faster than an argsort.
        words = bits_between(self._key, start, start + n)
        words &= ~np.uint64(_BLOCK - 1)
        words |= _NUMBERS[:n]
        words.sort()
        words &= np.uint64(_BLOCK - 1)
        parts = parts[words.view(np.int64)]
        # Each order's units come in their own order.
        numbers = np.empty(n, np.uint16)
        numbers[np.argsort(parts, kind="stable")] = _NUMBERS[:n] - np.repeat(np.cumsum(n_here) - n_here, n_here)
        return _Block(parts, numbers, before)


def whole_units(n: int, unit: int, stride: int) -> int:
    """How many units lie wholly in the canonical nodes of an order of `n` samples."""
    each, n_longer = divmod(n, stride)
    return stride * (each // unit) + (n_longer if (each + 1) % unit == 0 else 0)
