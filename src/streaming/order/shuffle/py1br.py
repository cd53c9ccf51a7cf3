"""`py1br`: consecutive blocks of random length, each permuted inside; the first is shortened by a random amount.

So the blocks of different canonical nodes do not end in step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import derive_key
from streaming.order.shuffle.blocks import LONGEST_BLOCK, Blocks
from streaming.order.shuffle.protocol import WindowShuffle


def make(n_rows: NDArray[np.int64], block: int, key: int) -> WindowShuffle:
    """Make the shuffle of a canonical node. `n_rows`: rows of each run in run order, int64 (run,)."""
    # Two jitters differ by less than a quarter of a block, so the stagger never uses up the first block.
    block = min(block, LONGEST_BLOCK)
    jitter = block // 4
    return Blocks(n_rows, block, jitter=jitter, stagger=derive_key(key, 2) % (block - jitter), key=key)
