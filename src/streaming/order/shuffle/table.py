"""The shuffle algorithms by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.grid import CanonicalNodeGrid
from streaming.order.shuffle import naive, plain, py1b, py1br, py1e, py1s, py2s
from streaming.order.shuffle.protocol import PointShuffle, WindowShuffle


@dataclass(frozen=True, slots=True)
class PointAlgorithm:
    """A shuffle in closed form, made once for a whole sub-order.

    `make(grid, key)`.
    """

    make: Callable[[CanonicalNodeGrid, int], PointShuffle]
    uses_block: bool = False
    permutes_shards: bool = False


@dataclass(frozen=True, slots=True)
class WindowAlgorithm:
    """A shuffle that is made for each canonical node.

    `make(n_rows, block, key)`, with the rows of each run in run order, int64 (run,).
    """

    make: Callable[[NDArray[np.int64], int, int], WindowShuffle]
    uses_block: bool
    permutes_shards: bool = False
    """Whether the rows of each shard are permuted before the shard is cut between canonical nodes."""


STORED: Final = PointAlgorithm(plain.Plain)
SHUFFLES: Final[dict[str, PointAlgorithm | WindowAlgorithm]] = {
    "naive": PointAlgorithm(naive.Naive),
    "py1s": WindowAlgorithm(py1s.make, uses_block=False),
    "py2s": WindowAlgorithm(py2s.make, uses_block=False, permutes_shards=True),
    "py1b": WindowAlgorithm(py1b.make, uses_block=True),
    "py1br": WindowAlgorithm(py1br.make, uses_block=True),
    "py1e": WindowAlgorithm(py1e.make, uses_block=True),
}
