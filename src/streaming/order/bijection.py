"""A keyed permutation of 0..n-1 as a function of the number: a Feistel network over the next even number of bits.

What falls outside 0..n-1 walks on until it is inside; the domain is below 4 n, so that takes under 4 turns on average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import chained_bits

ROUNDS: Final = 6
_ROUND_SHIFT: Final = 32
"""A round's number lies above the half word that it hashes."""

Round = Callable[[int, NDArray[np.uint64]], NDArray[np.uint64]]
"""Fresh bits for half words in one round: (number, uint64 (any,)) -> uint64 (any,)."""


def half_width(n: int) -> int:
    """How many bits half a word has in the network for 0..n-1."""
    return max(1, ((max(2, n) - 1).bit_length() + 1) // 2)


def feistel(words: NDArray[np.uint64], half: NDArray[np.uint64] | np.uint64, turn: Round) -> NDArray[np.uint64]:
    """Each word through the network, once. `half`: bits of half a word, one for all or one each."""
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
    """Each number in the permutation of its own 0..n-1 and key; n up to 2**31. Three of (number,) -> (number,)."""
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
