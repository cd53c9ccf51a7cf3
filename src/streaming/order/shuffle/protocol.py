"""What a shuffle can do. There are two kinds: by place, in closed form, and by window, inside a canonical node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, slots=True)
class RunUses:
    """At which ranks of a canonical node its runs are read: one row for each stretch, int64 (use,) each.

    `first` and `likely_end` are close estimates; `end` is a bound: the run has no sample of this stretch from rank
    `end` on. A run that crosses the seam of a ring has two rows.
    """

    run: NDArray[np.int64]
    first: NDArray[np.int64]
    likely_end: NDArray[np.int64]
    end: NDArray[np.int64]


class PointShuffle(Protocol):
    """An order given position by position."""

    @property
    def by_lane(self) -> bool:
        """Whether a canonical node has runs of its own; else any position may read any run."""

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place in the dealt runs of every position. int64 (position,) -> int64 (position,)."""

    def uses(self, lane: int, offsets: NDArray[np.int64]) -> RunUses:
        """When canonical node `lane` reads the dealt runs, which begin at `offsets`, int64 (run + 1,)."""


class LaneShuffle(Protocol):
    """The order of one canonical node, evaluated window by window."""

    @property
    def n_places(self) -> int:
        """How many samples the canonical node holds."""

    @property
    def reach(self) -> int:
        """How many ranks may be walked for the price of one jump."""

    def walk(self, rank: int) -> Iterator[NDArray[np.int64]]:
        """The places at ranks `rank`, `rank + 1`, … to the end, in chunks, int64 (rank,) each."""

    def uses(self) -> RunUses:
        """When each run is read."""
