"""No shuffle: every canonical node has its samples in stored order."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.grid import LaneGrid
from streaming.order.shuffle.protocol import RunUses


class Plain:
    """Position q is rank `q div C` of its canonical node, and the rank is the place."""

    by_lane: Final = True

    def __init__(self, grid: LaneGrid, key: int) -> None:
        self._grid = grid

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PointShuffle."""
        lanes, ranks = self._grid.locate(positions)
        return self._grid.lane_start[lanes] + ranks

    def uses(self, lane: int, offsets: NDArray[np.int64]) -> RunUses:
        """See PointShuffle; exact here."""
        start, stop = int(self._grid.lane_start[lane]), int(self._grid.lane_start[lane + 1])
        if start == stop:
            return RunUses(*(np.zeros(0, np.int64) for _ in range(4)))
        runs = np.arange(np.searchsorted(offsets, start, "right") - 1, np.searchsorted(offsets, stop, "left"))
        first = np.maximum(offsets[runs], start) - start
        end = np.minimum(offsets[runs + 1], stop) - start
        return RunUses(runs, first, end, end)
