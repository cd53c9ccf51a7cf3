"""Which canonical nodes of each order a node reads: never too few, and few more where that can be told."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.epoch import EpochOrder
from streaming.order.grid import LaneGrid, most_missed
from streaming.order.nodes.partition import lanes_of_node, node_share
from streaming.order.nodes.topology import Topology

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
    return _of_merged([part.grid.n_lanes for part in order.parts], topology, node, n_slots)


def _of_one_order(
    grid: LaneGrid, topology: Topology, node: int, start: int, n_slots: int, n_batches: int
) -> NDArray[np.int64]:
    # Batches that begin at equal residues are cut alike.
    n_different = min(grid.n_lanes // math.gcd(grid.n_lanes, n_slots), n_batches)
    if n_different * grid.n_lanes > _LARGEST_TABLE:
        return np.arange(grid.n_lanes, dtype=np.int64)
    starts = start + n_slots * np.arange(n_different, dtype=np.int64)
    return lanes_of_node(grid, starts, n_slots, topology, node)


def _of_merged(n_lanes: list[int], topology: Topology, node: int, n_slots: int) -> Lanes:
    """A batch has a stretch of each order, of any length. Of m slots, a share l/C so lies before canonical node l of C.

    To within what stretches miss, all together. Where orders have fewer canonical nodes than others, those count as the
    first of several, so up to the next canonical node of the order with fewest more may lie before l.
    """
    if any(n & (n - 1) for n in n_lanes):
        return [np.arange(n, dtype=np.int64) for n in n_lanes]
    low, high = node_share(n_slots, topology, node)
    missed, fewest = sum(most_missed(n) for n in n_lanes), min(n_lanes)
    first = max(0, (low - missed) * fewest // n_slots)
    stops = [min(n, -(-(high + missed) * n // n_slots)) for n in n_lanes]
    return [np.arange(first * (n // fewest), stop, dtype=np.int64) for n, stop in zip(n_lanes, stops)]
