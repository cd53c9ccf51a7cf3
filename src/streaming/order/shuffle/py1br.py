"""`py1br`: consecutive blocks of random length, each permuted inside; the first is shortened by a random amount.

So neither the blocks of one canonical node nor those of several turn over in step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import derive_key
from streaming.order.shuffle.blocks import LONGEST_BLOCK, Blocks
from streaming.order.shuffle.protocol import LaneShuffle


def lane(n_rows: NDArray[np.int64], block: int, key: int) -> LaneShuffle:
    """The order of a canonical node with runs of these lengths, int64 (run,)."""
    # Two jitters differ by less than a quarter of a block; what is left of the first block is never nothing.
    block = min(block, LONGEST_BLOCK)
    jitter = block // 4
    return Blocks(n_rows, block, jitter=jitter, stagger=derive_key(key, 2) % (block - jitter), key=key)
