"""Random bits from a counter hash, in plain uint64 arithmetic.

The bits of counter `i` under a key are `mix64(key + i × 0x9E3779B97F4A7C15)`: splitmix64, read at random places. Any
set of counters has its bits at once, in any order, on any platform and with any version of numpy. A change to anything
here changes every epoch order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15
_MULTIPLIER_1: Final = 0xBF58476D1CE4E5B9
_MULTIPLIER_2: Final = 0x94D049BB133111EB
_WORD: Final = (1 << 64) - 1
_STEPS: Final = np.arange(1 << 14, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
"""What the first counters add to a key. Kept, because making them takes a fourth of the time of the hash."""


class Purpose:
    """The last part of a key: what its bits are for, so that no two uses of a seed share bits. Fixed for ever."""

    DEAL: Final = 1  # the order in which shards are dealt to canonical nodes
    RUN_ORDER: Final = 2  # the order of the runs of a canonical node
    SHUFFLE: Final = 3  # where each sample lies in its canonical node
    BIJECTION: Final = 4  # the rounds of `naive`
    PADDING: Final = 5  # where padding starts
    NODE_DEAL: Final = 6  # the order in which a node deals its slots to its ranks
    RANK_ORDER: Final = 7  # the order of the slots of a rank
    SHARD_ROWS: Final = 8  # the order of the rows of a shard under `py2s`
    BLOCKS: Final = 9  # where the blocks of `py1br` end
    SAMPLE: Final = 10  # which shards give rows to a partial pass, and how many
    SAMPLED_ROWS: Final = 11  # which rows they give
    STREAM: Final = 12  # the seed of a stream that has a sub-order of its own
    UNIT_ORDER: Final = 13  # the order in which streams take turns, unit by unit
    WEIGHTS: Final = 14  # which streams get the samples left over by rounding


def mix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the splitmix64 finaliser to each element. Changes `words` in place and returns it."""
    scratch = np.right_shift(words, np.uint64(30))
    words ^= scratch
    words *= np.uint64(_MULTIPLIER_1)
    np.right_shift(words, np.uint64(27), out=scratch)
    words ^= scratch
    words *= np.uint64(_MULTIPLIER_2)
    np.right_shift(words, np.uint64(31), out=scratch)
    words ^= scratch
    return words


def derive_key(*parts: int) -> int:
    """Derive a 64-bit key for one purpose: `mix64` chained over the parts. Their number and order matter."""
    key = 0
    for part in parts:
        key = _mix64_of_int(((key ^ (part & _WORD)) * GOLDEN_GAMMA + 0x632BE59BD9B4E019) & _WORD)
    return key


def bits(key: int, counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 random bits for every counter. int64 (any shape) -> uint64 (same shape)."""
    words = counters.view(np.uint64) * np.uint64(GOLDEN_GAMMA)
    words += np.uint64(key)
    return mix64(words)


def bits_between(key: int, start: int, stop: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each of the counters start..stop-1: uint64 (counter,)."""
    first = np.uint64((key + start * GOLDEN_GAMMA) & _WORD)
    n = stop - start
    steps = _STEPS[:n] if n <= len(_STEPS) else np.arange(n, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
    return mix64(steps + first)


def chained_bits(words: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each pair of a word, used as the key, and a counter.

    uint64, int64 (pair,) -> uint64 (pair,).
    """
    mixed = counters.view(np.uint64) * np.uint64(GOLDEN_GAMMA)
    mixed += words
    return mix64(mixed)


def keyed_order(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Argsort random words, stably. uint64 (any,) -> int64 (any,). Takes a fifth of the time of a stable sort."""
    order = np.argsort(words)
    in_order = words[order]
    return np.argsort(words, kind="stable") if (in_order[1:] == in_order[:-1]).any() else order


def smallest_type(stop: int) -> type[np.integer[Any]]:
    """Return a type for the numbers below `stop`: 8 or 16 bits where they suffice, since numpy radix-sorts those."""
    return np.uint8 if stop <= 1 << 8 else np.uint16 if stop <= 1 << 16 else np.int64


def _mix64_of_int(word: int) -> int:
    word ^= word >> 30
    word = word * _MULTIPLIER_1 & _WORD
    word ^= word >> 27
    word = word * _MULTIPLIER_2 & _WORD
    return word ^ (word >> 31)
