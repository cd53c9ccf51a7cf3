"""A keyed permutation of 0..n-1 as a function of the number: a Feistel network over the next even number of bits.

A result outside 0..n-1 goes through the network again until it lies inside (cycle walking). The domain is smaller than
4 n, so a number takes fewer than 4 turns on average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import chained_bits

ROUNDS: Final = 6
_ROUND_SHIFT: Final = 32
"""The bit position of the round number, above the half word that the round hashes."""

Round = Callable[[int, NDArray[np.uint64]], NDArray[np.uint64]]
"""Fresh bits for half words in one round: (round number, uint64 (any,)) -> uint64 (any,)."""


def half_width(n: int) -> int:
    """Return the number of bits of half a word in the network for 0..n-1."""
    return max(1, ((max(2, n) - 1).bit_length() + 1) // 2)


def feistel(words: NDArray[np.uint64], half: NDArray[np.uint64] | np.uint64, turn: Round) -> NDArray[np.uint64]:
    """Send each word through the network once. `half`: bits of half a word, one for all words or one each."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = words >> half, words & mask
    for number in range(ROUNDS):
        turned = turn(number, right)
        turned &= mask
        turned ^= left
        left, right = right, turned
    result: NDArray[np.uint64] = (left << half) | right
    return result


def permuted(numbers: NDArray[np.int64], n: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Permute each number within its own 0..n-1, under its own key; n up to 2**31. Three of (number,) -> (number,)."""
    # Exact for these n: doubles hold 53 bits, and the exponent is the bit length.
    n_bits = np.frexp(np.maximum(n - 1, 1).astype(np.float64))[1]
    half = ((n_bits + 1) // 2).astype(np.uint64)
    limit = n.view(np.uint64)
    words = _one_turn(numbers.view(np.uint64), half, keys)
    outside = np.flatnonzero(words >= limit)
    while len(outside):
        walked = _one_turn(words[outside], half[outside], keys[outside])
        words[outside] = walked
        outside = outside[np.flatnonzero(walked >= limit[outside])]
    return words.view(np.int64)


def _one_turn(words: NDArray[np.uint64], half: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    def turn(number: int, right: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return chained_bits(keys, (right | np.uint64(number << _ROUND_SHIFT)).view(np.int64))

    return feistel(words, half, turn)
