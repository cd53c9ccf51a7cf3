"""`py1b`: consecutive blocks of one length, each permuted inside; in every canonical node they begin at place 0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.order.shuffle.blocks import LONGEST_BLOCK, Blocks
from streaming.order.shuffle.protocol import LaneShuffle


def lane(n_rows: NDArray[np.int64], block: int, key: int) -> LaneShuffle:
    """The order of a canonical node with runs of these lengths, int64 (run,)."""
    return Blocks(n_rows, min(block, LONGEST_BLOCK), jitter=0, stagger=0, key=key)
