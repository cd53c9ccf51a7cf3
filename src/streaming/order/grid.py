"""Which positions belong to which canonical node."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class LaneGrid:
    """`n_places` positions dealt to `n_lanes` canonical nodes: position q is rank `q div C` of node `spread(q mod C)`.

    The canonical node of residue i so has ceil((N - i) / C) places; nodes have their places one after the other.
    """

    n_places: int
    n_lanes: int
    lane_of_residue: NDArray[np.int64] = field(init=False, repr=False)
    """`spread`: int64 (residue,)."""
    residue_of_lane: NDArray[np.int64] = field(init=False, repr=False)
    """Its inverse: int64 (lane,)."""
    lane_start: NDArray[np.int64] = field(init=False, repr=False)
    """Where each canonical node begins among the dealt places, int64 (lane + 1,)."""

    def __post_init__(self) -> None:
        lane_of_residue = spread(self.n_lanes)
        residue_of_lane = np.argsort(lane_of_residue)
        sizes = (self.n_places - residue_of_lane + self.n_lanes - 1) // self.n_lanes
        object.__setattr__(self, "lane_of_residue", lane_of_residue)
        object.__setattr__(self, "residue_of_lane", residue_of_lane)
        object.__setattr__(self, "lane_start", np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Canonical node of every position and its rank there. int64 (position,) -> two of the same."""
        if self.n_lanes == 1:
            return np.zeros(len(positions), np.int64), positions
        ranks = positions // self.n_lanes
        return self.lane_of_residue[positions - ranks * self.n_lanes], ranks  # several times as fast as divmod

    def first_ranks(self, lanes: NDArray[np.int64], position: int) -> NDArray[np.int64]:
        """The rank that each canonical node has at its first position not below `position`. (lane,) -> (lane,)."""
        return np.maximum(0, -((self.residue_of_lane[lanes] - position) // self.n_lanes))


def spread(n_lanes: int) -> NDArray[np.int64]:
    """The canonical node of each residue, int64 (residue,): bit reversal.

    So any stretch of positions lies evenly over any range of canonical nodes. For no power of two: the
    rank of the reversed number among the reversed numbers.

    >>> spread(4).tolist(), spread(3).tolist()
    ([0, 2, 1, 3], [0, 2, 1])
    """
    n_bits = max(1, (n_lanes - 1).bit_length())
    numbers = np.arange(n_lanes, dtype=np.int64)
    reversed_numbers = np.zeros(n_lanes, np.int64)
    for bit in range(n_bits):
        reversed_numbers |= ((numbers >> bit) & 1) << (n_bits - 1 - bit)
    return np.argsort(np.argsort(reversed_numbers))


def most_missed(n_lanes: int) -> int:
    """By how many a stretch of positions misses its even share of the first l of 2ᵇ canonical nodes at most: ⌈b/2⌉.

    2ⁱ canonical nodes, counted from a multiple of 2ⁱ on, are one residue class, and of that a stretch has its share to
    within less than one. The first l are made of such classes, each added or taken away: l in digits -1, 0 and 1, from
    the highest down, needs at most ⌈b/2⌉ that are not 0 (no two of them side by side), besides 2ᵇ, which is all.

    >>> most_missed(1), most_missed(2), most_missed(64)
    (0, 1, 3)
    """
    return n_lanes.bit_length() // 2
