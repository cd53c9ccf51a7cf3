"""No shuffle: every canonical node keeps its samples in stored order."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.grid import CanonicalNodeGrid
from streaming.order.shuffle.protocol import RunUses


class Plain:
    """Position q is rank `q div C` of its canonical node, and the rank is the place."""

    by_canonical_node: Final = True

    def __init__(self, grid: CanonicalNodeGrid, key: int) -> None:
        self._grid = grid

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PointShuffle."""
        canonical_nodes, ranks = self._grid.locate(positions)
        return self._grid.starts[canonical_nodes] + ranks

    def uses(self, canonical_node: int, offsets: NDArray[np.int64]) -> RunUses:
        """See PointShuffle. All columns are exact here."""
        start, stop = int(self._grid.starts[canonical_node]), int(self._grid.starts[canonical_node + 1])
        if start == stop:
            return RunUses(*(np.zeros(0, np.int64) for _ in range(4)))
        runs = np.arange(np.searchsorted(offsets, start, "right") - 1, np.searchsorted(offsets, stop, "left"))
        first = np.maximum(offsets[runs], start) - start
        end = np.minimum(offsets[runs + 1], stop) - start
        return RunUses(runs, first, end, end)
