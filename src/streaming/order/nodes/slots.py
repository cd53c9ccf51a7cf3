"""The slots that a node gets of whole batches, many at once: in closed form, however sub-orders share the epoch.

A slot is a position, or the first position of a unit that is dealt whole. `partition` defines what a node gets. Here it
is found without sorting all slots of a global batch, wherever that is possible.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching.even_merge import EvenMerge
from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.bits import smallest_type
from streaming.order.epoch import EpochOrder
from streaming.order.nodes.partition import (
    node_positions,
    node_share,
    slots_per_canonical_node,
    steps_to_canonical_nodes,
)
from streaming.order.nodes.topology import Topology

_LARGEST_TABLE: Final = 1 << 22

NodeSlots = tuple[NDArray[np.int64], NDArray[np.int64] | None]
"""Positions of a node's slots, int64 (batch, slot), and the sub-order of each; None if slots are not dealt by it."""


def node_slots(order: EpochOrder, topology: Topology, node: int, starts: NDArray[np.int64], n_slots: int) -> NodeSlots:
    """Return what `node` gets of the batches of `n_slots` slots that begin at `starts`, int64 (batch,), at least one.

    The slots of a batch come in any order.
    """
    merge = order.merge
    if merge is None:
        return node_positions(order.sub_orders[0].grid, starts, n_slots, topology, node), None
    if isinstance(merge, UnitMerge):
        if order.deals_units:
            return node_slots_by_sort(order, topology, node, starts.reshape(-1, 1) + np.arange(n_slots) * merge.unit)
        return _of_one_sub_order_each(order, merge, topology, node, starts, n_slots), None
    assert isinstance(merge, EvenMerge)
    if topology.n_nodes == 1 or order.n_canonical_nodes == 1:
        low, high = node_share(n_slots, topology, node)
        positions = starts.reshape(-1, 1) + np.arange(low, high)
        return positions, None if order.mixed else merge.find(positions.ravel())[0].reshape(positions.shape)
    n_at_once = max(1, _LARGEST_TABLE // (order.n_canonical_nodes * len(order.sub_orders)))
    pieces = [
        _of_merged(order, merge, topology, node, starts[first : first + n_at_once], n_slots)
        for first in range(0, len(starts), n_at_once)
    ]
    sub_orders = None if order.mixed else np.concatenate([piece[1] for piece in pieces])
    return np.concatenate([piece[0] for piece in pieces]), sub_orders


def node_slots_by_sort(order: EpochOrder, topology: Topology, node: int, positions: NDArray[np.int64]) -> NodeSlots:
    """Return what `node` gets of slots (batch, slot) by definition: sort them by canonical node, and cut.

    The canonical node of padding is that of the sample that it repeats.
    """
    low, high = node_share(positions.shape[1], topology, node)
    canonical_nodes, sub_orders = order.locate(order.source(positions.ravel()))
    canonical_nodes = canonical_nodes.astype(smallest_type(order.n_canonical_nodes))
    mine = np.argsort(canonical_nodes.reshape(positions.shape), axis=1, kind="stable")[:, low:high]
    dealt_by = None if order.mixed else np.take_along_axis(sub_orders.reshape(positions.shape), mine, axis=1)
    return np.take_along_axis(positions, mine, axis=1), dealt_by


def _of_one_sub_order_each(
    order: EpochOrder, merge: UnitMerge, topology: Topology, node: int, starts: NDArray[np.int64], n_slots: int
) -> NDArray[np.int64]:
    """Return the positions of batches that are units, so consecutive positions of one sub-order.

    All sub-orders have equally many canonical nodes.
    """
    _, numbers = merge.find_units(starts // merge.unit)
    own_starts = numbers * merge.unit
    positions = node_positions(order.sub_orders[0].grid, own_starts, n_slots, topology, node)
    return positions + (starts - own_starts).reshape(-1, 1)


def _of_merged(
    order: EpochOrder, merge: EvenMerge, topology: Topology, node: int, starts: NDArray[np.int64], n_slots: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the slots of batches of sub-orders that are merged sample by sample.

    A batch holds a segment of each sub-order, so the slots of each canonical node can be counted.
    """
    low, high = node_share(n_slots, topology, node)
    begins, ends = merge.all_counts(starts), merge.all_counts(starts + n_slots)
    grids = [sub_order.grid for sub_order in order.sub_orders]
    steps = [steps_to_canonical_nodes(grid, begins[:, i]) for i, grid in enumerate(grids)]
    counts = [slots_per_canonical_node(grid, steps[i], (ends - begins)[:, i : i + 1]) for i, grid in enumerate(grids)]
    totals = np.sum(counts, axis=0)
    cell_ends = np.cumsum(totals, axis=1)
    cell_begins = cell_ends - totals
    met = (cell_ends > low) & (cell_begins < high)
    columns: list[tuple[NDArray[np.int64], ...]] = []
    for i, grid in enumerate(grids):
        n_here = np.where(met, counts[i], 0).ravel()
        cell = np.repeat(np.arange(len(n_here)), n_here)  # (batch, canonical node) as one number
        within = np.arange(len(cell)) - np.repeat(np.cumsum(n_here) - n_here, n_here)
        own = (begins[:, i : i + 1] + steps[i]).ravel()[cell] + within * grid.n_canonical_nodes
        columns.append((cell, merge.positions(i, own), np.full(len(cell), i, np.int64)))
    cells, positions, sub_orders = (np.concatenate(column) for column in zip(*columns))
    # Only canonical nodes that are cut between nodes need the order of their slots.
    is_cut = (met & ((cell_begins < low) | (cell_ends > high))).ravel()[cells]
    at_cut = np.flatnonzero(is_cut)
    at_cut = at_cut[np.lexsort((positions[at_cut], cells[at_cut]))]
    cut_cells = cells[at_cut]
    slot = np.arange(len(at_cut)) - np.searchsorted(cut_cells, cut_cells, "left") + cell_begins.ravel()[cut_cells]
    kept = np.concatenate([np.flatnonzero(~is_cut), at_cut[(slot >= low) & (slot < high)]])
    kept = kept[np.argsort(cells[kept] // order.n_canonical_nodes, kind="stable")]
    shape = len(starts), high - low
    return positions[kept].reshape(shape), sub_orders[kept].reshape(shape)
