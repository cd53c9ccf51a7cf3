"""Which positions belong to which canonical node."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CanonicalNodeGrid:
    """The deal of `n_places` positions to C = `n_canonical_nodes` canonical nodes.

    Position q is rank `q div C` of canonical node `spread(q mod C)`. So the canonical node of residue i holds
    ceil((N - i) / C) samples. Their places lie one canonical node after the other.
    """

    n_places: int
    n_canonical_nodes: int
    spread: NDArray[np.int64] = field(init=False, repr=False)
    """Canonical node of each residue, int64 (residue,)."""
    residues: NDArray[np.int64] = field(init=False, repr=False)
    """Residue of each canonical node, int64 (canonical node,): the inverse of `spread`."""
    starts: NDArray[np.int64] = field(init=False, repr=False)
    """First place of each canonical node among all places, int64 (canonical node + 1,)."""

    def __post_init__(self) -> None:
        by_residue = spread(self.n_canonical_nodes)
        residues = np.argsort(by_residue)
        sizes = (self.n_places - residues + self.n_canonical_nodes - 1) // self.n_canonical_nodes
        object.__setattr__(self, "spread", by_residue)
        object.__setattr__(self, "residues", residues)
        object.__setattr__(self, "starts", np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the canonical node of every position and its rank there. int64 (position,) -> two of (position,)."""
        if self.n_canonical_nodes == 1:
            return np.zeros(len(positions), np.int64), positions
        ranks = positions // self.n_canonical_nodes
        # Several times as fast as divmod.
        return self.spread[positions - ranks * self.n_canonical_nodes], ranks

    def first_ranks(self, canonical_nodes: NDArray[np.int64], position: int) -> NDArray[np.int64]:
        """Return the rank of the first sample at or after `position` in each canonical node.

        int64 (canonical node,) -> int64 (canonical node,).
        """
        return np.maximum(0, -((self.residues[canonical_nodes] - position) // self.n_canonical_nodes))


def spread(n_canonical_nodes: int) -> NDArray[np.int64]:
    """Return the canonical node of each residue, int64 (residue,): bit reversal.

    It spreads any segment of positions evenly over any range of canonical nodes. For a number that is no power of two:
    the rank of the reversed number among the reversed numbers.

    >>> spread(4).tolist(), spread(3).tolist()
    ([0, 2, 1, 3], [0, 2, 1])
    """
    n_bits = max(1, (n_canonical_nodes - 1).bit_length())
    numbers = np.arange(n_canonical_nodes, dtype=np.int64)
    reversed_numbers = np.zeros(n_canonical_nodes, np.int64)
    for bit in range(n_bits):
        reversed_numbers |= ((numbers >> bit) & 1) << (n_bits - 1 - bit)
    return np.argsort(np.argsort(reversed_numbers))


def most_missed(n_canonical_nodes: int) -> int:
    """Bound how far any segment of positions is off its even share of the first l of 2ᵇ canonical nodes: ⌈b/2⌉ samples.

    The share is l/2ᵇ of the segment, for any l. 2ⁱ canonical nodes, counted from a multiple of 2ⁱ on, are one residue
    class, of which a segment has its share to within less than one sample. The first l canonical nodes are made of such
    classes, each added or subtracted: l in digits -1, 0 and 1, from the highest down, needs at most ⌈b/2⌉ nonzero
    digits (no two of them adjacent), besides 2ᵇ, which stands for all.

    >>> most_missed(1), most_missed(2), most_missed(64)
    (0, 1, 3)
    """
    return n_canonical_nodes.bit_length() // 2
