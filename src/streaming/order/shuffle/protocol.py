"""The two kinds of shuffle: by point, in closed form, and by window, inside one canonical node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, slots=True)
class RunUses:
    """The ranks of a canonical node at which its runs are read: one row per segment, int64 (use,) each.

    `first` and `likely_end` are close estimates. `end` is a bound: the segment holds no sample of the run at rank `end`
    or later. A run that crosses the seam of a ring has two rows.
    """

    run: NDArray[np.int64]
    first: NDArray[np.int64]
    likely_end: NDArray[np.int64]
    end: NDArray[np.int64]


class PointShuffle(Protocol):
    """The order of a whole sub-order, evaluated position by position."""

    @property
    def by_canonical_node(self) -> bool:
        """Whether each canonical node reads runs of its own; otherwise any position may read any run."""

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of every position among the dealt runs. int64 (position,) -> int64 (position,)."""

    def uses(self, canonical_node: int, offsets: NDArray[np.int64]) -> RunUses:
        """Return when a canonical node reads the dealt runs. `offsets`: where these begin, int64 (run + 1,)."""


class WindowShuffle(Protocol):
    """The order of one canonical node, evaluated window by window."""

    @property
    def n_places(self) -> int:
        """The number of samples in the canonical node."""

    @property
    def reach(self) -> int:
        """The number of ranks that can be walked at the price of one jump."""

    def walk(self, rank: int) -> Iterator[NDArray[np.int64]]:
        """Yield the places at ranks `rank`, `rank + 1`, … to the end, in chunks, int64 (rank,) each."""

    def uses(self) -> RunUses:
        """Return when each run is read."""
