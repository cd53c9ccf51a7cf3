"""Which shuffles there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.grid import LaneGrid
from streaming.order.shuffle import naive, plain, py1b, py1br, py1e, py1s, py2s
from streaming.order.shuffle.protocol import LaneShuffle, PointShuffle


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A shuffle in closed form, made for a whole epoch from its grid and a key."""

    make: Callable[[LaneGrid, int], PointShuffle]
    uses_block: bool = False
    permutes_shards: bool = False


@dataclass(frozen=True, slots=True)
class Lanewise:
    """A shuffle made for each canonical node from its run lengths, the block and a key."""

    make: Callable[[NDArray[np.int64], int, int], LaneShuffle]
    uses_block: bool
    permutes_shards: bool = False
    """Whether the rows of each shard are permuted before it is cut."""


STORED: Final = Pointwise(plain.Plain)
SHUFFLES: Final[dict[str, Pointwise | Lanewise]] = {
    "naive": Pointwise(naive.Naive),
    "py1s": Lanewise(py1s.lane, uses_block=False),
    "py2s": Lanewise(py2s.lane, uses_block=False, permutes_shards=True),
    "py1b": Lanewise(py1b.lane, uses_block=True),
    "py1br": Lanewise(py1br.lane, uses_block=True),
    "py1e": Lanewise(py1e.lane, uses_block=True),
}
