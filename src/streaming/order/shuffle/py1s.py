"""`py1s`: runs one after the other, the rows of each permuted; this is `py1e` with block 0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.order.shuffle.protocol import WindowShuffle
from streaming.order.shuffle.ring import Ring


def make(n_rows: NDArray[np.int64], block: int, key: int) -> WindowShuffle:
    """Make the shuffle of a canonical node. `n_rows`: as for `py1e`; `block` has no effect."""
    return Ring(n_rows, 0, key)
