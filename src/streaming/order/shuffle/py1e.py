"""`py1e`: each run is spread over the shuffle block around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.order.shuffle.protocol import WindowShuffle
from streaming.order.shuffle.ring import Ring


def make(n_rows: NDArray[np.int64], block: int, key: int) -> WindowShuffle:
    """Make the shuffle of a canonical node. `n_rows`: rows of each run in run order, int64 (run,)."""
    return Ring(n_rows, block, key)
