"""Which canonical nodes of each order a node reads: never too few, and few more where that can be told."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.epoch import EpochOrder
from streaming.order.grid import LaneGrid
from streaming.order.partition import lanes_of_node, node_share
from streaming.order.topology import Topology
from streaming.order.unit_merge import UnitMerge

_LARGEST_TABLE: Final = 1 << 22

Lanes = list[NDArray[np.int64]]
"""For each order of an epoch, canonical nodes: int64 (lane,)."""


def all_lanes(order: EpochOrder) -> Lanes:
    """All of them."""
    return [np.arange(part.grid.n_lanes, dtype=np.int64) for part in order.parts]


def lanes_at(order: EpochOrder, positions: NDArray[np.int64]) -> Lanes:
    """Those that samples at these positions lie in. int64 (position,)."""
    parts, own = order.find(positions)
    return [np.unique(part.grid.locate(own[parts == number])[0]) for number, part in enumerate(order.parts)]


def lanes_of_batches(order: EpochOrder, topology: Topology, node: int, start: int, n_slots: int, n: int) -> Lanes:
    """Those that `node` reads in `n` whole batches of `n_slots` slots from `start` on; all, if none can be spared."""
    merge = order.merge
    if topology.n_nodes == 1:
        return all_lanes(order)
    if merge is None:
        return [_of_one_order(order.parts[0].grid, topology, node, start, n_slots, n)]
    if isinstance(merge, UnitMerge) and not order.deals_units:  # a batch is of one order, and begins at a unit of it
        return [_of_one_order(part.grid, topology, node, 0, n_slots, 1 << 62) for part in order.parts]
    return _of_merged([part.grid for part in order.parts], topology, node, n_slots)


def _of_one_order(
    grid: LaneGrid, topology: Topology, node: int, start: int, n_slots: int, n_batches: int
) -> NDArray[np.int64]:
    # Batches that begin at equal residues are cut alike.
    n_different = min(grid.n_lanes // math.gcd(grid.n_lanes, n_slots), n_batches)
    if n_different * grid.n_lanes > _LARGEST_TABLE:
        return np.arange(grid.n_lanes, dtype=np.int64)
    starts = start + n_slots * np.arange(n_different, dtype=np.int64)
    return lanes_of_node(grid, starts, n_slots, topology, node)


def _of_merged(grids: list[LaneGrid], topology: Topology, node: int, n_slots: int) -> Lanes:
    """A batch has a stretch of each order, of any length.

    With C a power of two, any stretch lies in aligned halves, quarters, … of the canonical nodes evenly to within less
    than a sample. The first l of C are at most log2 C of those together; so as many slots as orders × log2 C at most
    lie before them more or less than l/C of all.
    """
    low, high = node_share(n_slots, topology, node)
    if any(grid.n_lanes & (grid.n_lanes - 1) for grid in grids):
        return [np.arange(grid.n_lanes, dtype=np.int64) for grid in grids]
    slack = sum(grid.n_lanes.bit_length() - 1 for grid in grids)
    lanes = []
    for grid in grids:
        first = max(0, ((low - slack) * grid.n_lanes) // n_slots - 1)
        stop = min(grid.n_lanes, -((-(high + slack) * grid.n_lanes) // n_slots) + 1)
        lanes.append(np.arange(first, stop, dtype=np.int64))
    return lanes
