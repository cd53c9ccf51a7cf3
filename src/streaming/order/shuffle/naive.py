"""`naive`: one keyed bijection of the whole epoch, whatever the canonical nodes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import bits, derive_key
from streaming.order.grid import LaneGrid
from streaming.order.shuffle.protocol import RunUses

_ROUNDS: Final = 6


class Naive:
    """A Feistel network over the next even number of bits; what falls outside 0..N-1 walks on until it is inside."""

    by_lane: Final = False

    def __init__(self, grid: LaneGrid, key: int) -> None:
        self._n = grid.n_places
        self._half = max(1, ((max(2, self._n) - 1).bit_length() + 1) // 2)
        self._round_keys = [derive_key(key, number) for number in range(_ROUNDS)]

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PointShuffle."""
        words = positions.astype(np.uint64)
        outside = np.arange(len(words))
        while len(outside):  # under 4 turns on average: the domain is below 4 N
            walked = self._permute(words[outside])
            words[outside] = walked
            outside = outside[walked >= np.uint64(self._n)]
        return words.astype(np.int64)

    def uses(self, lane: int, offsets: NDArray[np.int64]) -> RunUses:
        """See PointShuffle; any run may be read at any time, so each lasts to the end."""
        runs = np.arange(len(offsets) - 1)
        end = np.full(len(runs), self._n + 1, np.int64)
        return RunUses(runs, np.zeros(len(runs), np.int64), end, end)

    def _permute(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        half, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = words >> half, words & mask
        for key in self._round_keys:
            left, right = right, left ^ (bits(key, right.view(np.int64)) & mask)
        return (left << half) | right
