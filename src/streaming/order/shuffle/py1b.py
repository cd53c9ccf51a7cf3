"""`py1b`: consecutive blocks of equal length, each permuted inside, from place 0 of every canonical node on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.order.shuffle.blocks import LONGEST_BLOCK, Blocks
from streaming.order.shuffle.protocol import WindowShuffle


def make(n_rows: NDArray[np.int64], block: int, key: int) -> WindowShuffle:
    """Make the shuffle of a canonical node. `n_rows`: rows of each run in run order, int64 (run,)."""
    return Blocks(n_rows, min(block, LONGEST_BLOCK), jitter=0, stagger=0, key=key)
