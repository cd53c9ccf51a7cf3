"""How several orders take turns in an epoch."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Interleave(Protocol):
    """Which order each position comes from, and which position it has there."""

    @property
    def n_positions(self) -> int:
        """How many positions there are."""

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of the order of every position, and the position there. int64 (position,) -> two of the same."""

    def counts(self, position: int) -> list[int]:
        """For each order, a position of it that nothing from `position` on lies before; the highest where possible."""
