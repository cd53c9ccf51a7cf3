"""Which canonical nodes of each sub-order a node reads: never too few, and few too many."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching.exact_merge import ExactMerge
from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.epoch import EpochOrder
from streaming.order.grid import CanonicalNodeGrid, most_missed
from streaming.order.nodes.partition import canonical_nodes_of_node, node_share
from streaming.order.nodes.topology import Topology

_LARGEST_TABLE: Final = 1 << 22

CanonicalNodeSets = list[NDArray[np.int64]]
"""Canonical nodes of each sub-order of an epoch, int64 (canonical node,) each."""


def all_canonical_nodes(order: EpochOrder) -> CanonicalNodeSets:
    """Return all canonical nodes."""
    return [np.arange(sub_order.n_canonical_nodes, dtype=np.int64) for sub_order in order.sub_orders]


def canonical_nodes_at(order: EpochOrder, positions: NDArray[np.int64]) -> CanonicalNodeSets:
    """Return the canonical nodes of the samples at these positions, int64 (position,)."""
    sub_orders, own = order.find(positions)
    return [
        np.unique(sub_order.grid.locate(own[sub_orders == number])[0])
        for number, sub_order in enumerate(order.sub_orders)
    ]


def canonical_nodes_of_batches(
    order: EpochOrder, topology: Topology, node: int, start: int, n_slots: int, n: int
) -> CanonicalNodeSets:
    """Return the canonical nodes that `node` reads in `n` whole batches of `n_slots` slots from `start` on.

    All of them where no cheap bound is known.
    """
    merge = order.merge
    if topology.n_nodes == 1:
        return all_canonical_nodes(order)
    if merge is None:
        return [_of_one_sub_order(order.sub_orders[0].grid, topology, node, start, n_slots, n)]
    if isinstance(merge, UnitMerge) and not order.deals_units:  # a batch is a unit of one sub-order
        return [
            _of_one_sub_order(sub_order.grid, topology, node, 0, n_slots, 1 << 62) for sub_order in order.sub_orders
        ]
    if isinstance(merge, ExactMerge):  # a batch holds a segment of each sub-order, each dealt on its own
        return [
            _of_one_sub_order(
                sub_order.grid, topology, node, start // merge.unit * share, n_slots // merge.unit * share, n
            )
            if share
            else np.zeros(0, np.int64)
            for sub_order, share in zip(order.sub_orders, merge.composition)
        ]
    return _of_merged([sub_order.n_canonical_nodes for sub_order in order.sub_orders], topology, node, n_slots)


def _of_one_sub_order(
    grid: CanonicalNodeGrid, topology: Topology, node: int, start: int, n_slots: int, n_batches: int
) -> NDArray[np.int64]:
    # Batches that begin at equal residues are cut alike.
    n_different = min(grid.n_canonical_nodes // math.gcd(grid.n_canonical_nodes, n_slots), n_batches)
    if n_different * grid.n_canonical_nodes > _LARGEST_TABLE:
        return np.arange(grid.n_canonical_nodes, dtype=np.int64)
    starts = start + n_slots * np.arange(n_different, dtype=np.int64)
    return canonical_nodes_of_node(grid, starts, n_slots, topology, node)


def _of_merged(n_canonical_nodes: list[int], topology: Topology, node: int, n_slots: int) -> CanonicalNodeSets:
    """Return the canonical nodes of batches of merged sub-orders.

    A batch holds a segment of each sub-order, of any length. So of its m slots, a share of l/C lies before canonical
    node l of C, to within what all the segments miss (`most_missed`). The canonical nodes of a sub-order that has fewer
    than others count as the first of several. So the slots before l may reach up to the next canonical node of the
    sub-order that has fewest.
    """
    if any(n & (n - 1) for n in n_canonical_nodes):
        return [np.arange(n, dtype=np.int64) for n in n_canonical_nodes]
    low, high = node_share(n_slots, topology, node)
    missed, fewest = sum(most_missed(n) for n in n_canonical_nodes), min(n_canonical_nodes)
    first = max(0, (low - missed) * fewest // n_slots)
    stops = [min(n, -(-(high + missed) * n // n_slots)) for n in n_canonical_nodes]
    return [np.arange(first * (n // fewest), stop, dtype=np.int64) for n, stop in zip(n_canonical_nodes, stops)]
