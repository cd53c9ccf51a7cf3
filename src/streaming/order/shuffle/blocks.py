"""A canonical node cut into consecutive blocks, each permuted inside, for `py1b` and `py1br`.

Block k begins at place `k × block + jitter(k) - jitter(0) - stagger`, with keyed jitters below a quarter of a block. So
blocks are 0.75 to 1.25 `block` long, and the block of a place is found in closed form. The first block begins at place
0 and is shortened by the stagger. Inside a block, samples are sorted by (32 random bits of the place, place).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import bits, bits_between, derive_key
from streaming.order.shuffle.protocol import RunUses

LONGEST_BLOCK: Final = 1 << 33
"""Longer blocks are cut to this. No canonical node is as long as that, so the order stays the same."""

_CHUNK: Final = 4096
_RANDOM_BITS: Final = np.uint64(32)


class Blocks:
    """The shuffle of one canonical node. `n_rows`: rows of each run in run order, int64 (run,), none of them 0."""

    def __init__(self, n_rows: NDArray[np.int64], block: int, *, jitter: int, stagger: int, key: int) -> None:
        """`jitter`: upper bound of the jitters, at most a quarter of `block`; 0 for blocks of equal length."""
        self._key = key
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_rows)])
        self._n = int(self._offsets[-1])
        self._block = block
        self._jitter = jitter
        self._jitter_key = derive_key(key, 1)
        self._shift = int(self._jitters(np.zeros(1, np.int64))[0]) + stagger

    @property
    def n_places(self) -> int:
        """See WindowShuffle."""
        return self._n

    @property
    def reach(self) -> int:
        """See WindowShuffle. No block needs another, so what lies between two places is never evaluated."""
        return 0

    def walk(self, rank: int) -> Iterator[NDArray[np.int64]]:
        """See WindowShuffle. A chunk is one block, or several small ones."""
        number = int(self._block_at(np.array([rank], np.int64))[0])
        n_blocks = max(1, _CHUNK // self._block)
        while rank < self._n:
            numbers = np.arange(number, number + n_blocks + 1, dtype=np.int64)
            starts = self._starts(numbers)
            yield self._permuted(starts)[rank - int(starts[0]) :]
            number, rank = number + n_blocks, int(starts[-1])

    def uses(self) -> RunUses:
        """See WindowShuffle. All columns are exact to the block."""
        first = self._block_at(self._offsets[:-1])
        last = self._block_at(self._offsets[1:] - 1)
        end = self._starts(last + 1)
        return RunUses(np.arange(len(first)), self._starts(first), end, end)

    def _permuted(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places from starts[0] up to starts[-1] in order, block by block, by one sort of words."""
        base, stop = int(starts[0]), int(starts[-1])
        # A word is (block, 32 random bits, place): one block has at most 2**31 places, and several blocks have few.
        n_place_bits = np.uint64(max(0, stop - base - 1).bit_length())
        words = bits_between(self._key, base, stop)
        words >>= _RANDOM_BITS
        words <<= n_place_bits
        words |= np.arange(stop - base, dtype=np.uint64)
        if len(starts) > 2:
            blocks = np.repeat(np.arange(len(starts) - 1, dtype=np.uint64), np.diff(starts))
            words |= blocks << (n_place_bits + _RANDOM_BITS)
        words.sort()
        words &= (np.uint64(1) << n_place_bits) - np.uint64(1)
        places = words.view(np.int64)
        places += base
        return places

    def _block_at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each place. int64 (place,) -> int64 (place,)."""
        shifted = places + self._shift
        numbers: NDArray[np.int64] = shifted // self._block
        numbers -= self._jitters(numbers) > shifted - numbers * self._block
        return numbers

    def _starts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place at which each block begins. int64 (block,) -> int64 (block,)."""
        starts: NDArray[np.int64] = numbers * self._block + self._jitters(numbers) - self._shift
        return starts.clip(0, self._n)

    def _jitters(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._jitter:
            return np.zeros(len(numbers), np.int64)
        words = bits(self._jitter_key, numbers) >> _RANDOM_BITS
        words *= np.uint64(self._jitter)
        words >>= _RANDOM_BITS
        return words.view(np.int64)
