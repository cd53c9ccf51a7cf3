"""`naive`: one keyed bijection of all positions, which ignores canonical nodes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.bijection import ROUNDS, feistel, half_width
from streaming.order.bits import bits, derive_key
from streaming.order.grid import CanonicalNodeGrid
from streaming.order.shuffle.protocol import RunUses


class Naive:
    """One Feistel network over all positions, with a key for each round."""

    by_canonical_node: Final = False

    def __init__(self, grid: CanonicalNodeGrid, key: int) -> None:
        self._n = grid.n_places
        self._half = np.uint64(half_width(self._n))
        self._round_keys = [derive_key(key, number) for number in range(ROUNDS)]

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PointShuffle."""
        words = feistel(positions.view(np.uint64), self._half, self._turn)
        outside = np.flatnonzero(words >= np.uint64(self._n))
        while len(outside):
            walked = feistel(words[outside], self._half, self._turn)
            words[outside] = walked
            outside = outside[np.flatnonzero(walked >= np.uint64(self._n))]
        return words.view(np.int64)

    def uses(self, canonical_node: int, offsets: NDArray[np.int64]) -> RunUses:
        """See PointShuffle. Any run may be read at any time, so each lasts to the end."""
        runs = np.arange(len(offsets) - 1)
        end = np.full(len(runs), self._n + 1, np.int64)
        return RunUses(runs, np.zeros(len(runs), np.int64), end, end)

    def _turn(self, number: int, right: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return bits(self._round_keys[number], right.view(np.int64))
