"""Where randomness comes from: a counter hash in plain uint64 arithmetic.

The bits of counter `i` under a key are `mix64(key + i × 0x9E3779B97F4A7C15)`, splitmix64 read at random places. So any
set of counters has its bits at once, in any order, on any platform and with any version of numpy: nothing here may
change without changing every epoch order.
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
"""What counters add to a key: for the first ones kept, as making them takes as long as a fourth of the hash."""


class Purpose:
    """What a key is for: its last part, so that no two uses of a seed share bits. Fixed for ever."""

    DEAL: Final = 1  # in which order shards are dealt to canonical nodes
    RUN_ORDER: Final = 2  # in which order a canonical node has its runs
    SHUFFLE: Final = 3  # where each sample lies in its canonical node
    BIJECTION: Final = 4  # the rounds of `naive`
    PADDING: Final = 5  # from where an epoch is padded
    NODE_DEAL: Final = 6  # in which order a node deals its slots to its ranks
    RANK_ORDER: Final = 7  # in which order a rank has its slots
    SHARD_ROWS: Final = 8  # in which order `py2s` has the rows of a shard
    BLOCKS: Final = 9  # where the blocks of `py1br` end
    SAMPLE: Final = 10  # which shards give to a part of a pass, and how much
    SAMPLED_ROWS: Final = 11  # which rows they give
    STREAM: Final = 12  # the seed of a stream that has an order of its own
    UNIT_ORDER: Final = 13  # in which order the streams take turns, unit by unit
    WEIGHTS: Final = 14  # which streams get the samples that shares leave over


def mix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser, element by element. Changes `words` in place and returns it."""
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
    """A 64-bit key for one purpose: `mix64` chained over the parts; their number and order count."""
    key = 0
    for part in parts:
        key = _mix64_of_int(((key ^ (part & _WORD)) * GOLDEN_GAMMA + 0x632BE59BD9B4E019) & _WORD)
    return key


def bits(key: int, counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 random bits for every counter. int64 (any shape) -> uint64 (same shape)."""
    words = counters.view(np.uint64) * np.uint64(GOLDEN_GAMMA)
    words += np.uint64(key)
    return mix64(words)


def bits_between(key: int, start: int, stop: int) -> NDArray[np.uint64]:
    """64 random bits for the counters start..stop-1: uint64 (counter,)."""
    first = np.uint64((key + start * GOLDEN_GAMMA) & _WORD)
    n = stop - start
    steps = _STEPS[:n] if n <= len(_STEPS) else np.arange(n, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
    return mix64(steps + first)


def chained_bits(words: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Bits for pairs: each word is the key of its counter. uint64, int64 (pair,) -> uint64 (pair,)."""
    mixed = counters.view(np.uint64) * np.uint64(GOLDEN_GAMMA)
    mixed += words
    return mix64(mixed)


def keyed_order(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The stable order of random words. uint64 (any,) -> int64 (any,). A fifth of the time of a stable sort."""
    order = np.argsort(words)
    in_order = words[order]
    return np.argsort(words, kind="stable") if (in_order[1:] == in_order[:-1]).any() else order


def smallest_type(stop: int) -> type[np.integer[Any]]:
    """A type for numbers from 0 to below `stop`: of 8 or 16 bits where they do, as those are stably sorted by radix."""
    return np.uint8 if stop <= 1 << 8 else np.uint16 if stop <= 1 << 16 else np.int64


def _mix64_of_int(word: int) -> int:
    word ^= word >> 30
    word = word * _MULTIPLIER_1 & _WORD
    word ^= word >> 27
    word = word * _MULTIPLIER_2 & _WORD
    return word ^ (word >> 31)
