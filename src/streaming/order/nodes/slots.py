"""What a node gets of whole batches, many at once: in closed form, for each way in which orders share an epoch.

Slots are positions, or the first positions of units that are dealt whole. `partition` defines what a node gets; here
the same is found without sorting all slots of a global batch wherever that can be avoided.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching.even_merge import EvenMerge
from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.bits import smallest_type
from streaming.order.epoch import EpochOrder
from streaming.order.nodes.partition import lane_counts, node_positions, node_share, steps_to_lanes
from streaming.order.nodes.topology import Topology

_LARGEST_TABLE: Final = 1 << 22

Share = tuple[NDArray[np.int64], NDArray[np.int64] | None]
"""Positions of a node's slots, int64 (batch, slot), and the order that each comes from, if slots are dealt by it."""


def node_shares(order: EpochOrder, topology: Topology, node: int, starts: NDArray[np.int64], n_slots: int) -> Share:
    """What `node` gets of the batches of `n_slots` slots each that begin at `starts`, int64 (batch,), at least one.

    The slots of a batch come in any order.
    """
    merge = order.merge
    if merge is None:
        return node_positions(order.parts[0].grid, starts, n_slots, topology, node), None
    if isinstance(merge, UnitMerge):
        if order.deals_units:
            return _of_units(order, merge, topology, node, starts, n_slots)
        return _of_one_order_each(order, merge, topology, node, starts, n_slots), None
    assert isinstance(merge, EvenMerge)
    if topology.n_nodes == 1 or order.n_canonical_nodes == 1:
        low, high = node_share(n_slots, topology, node)
        positions = starts.reshape(-1, 1) + np.arange(low, high)
        return positions, None if order.mixed else merge.find(positions.ravel())[0].reshape(positions.shape)
    n_at_once = max(1, _LARGEST_TABLE // (order.n_canonical_nodes * len(order.parts)))
    pieces = [
        _of_merged(order, merge, topology, node, starts[first : first + n_at_once], n_slots)
        for first in range(0, len(starts), n_at_once)
    ]
    parts = None if order.mixed else np.concatenate([piece[1] for piece in pieces])
    return np.concatenate([piece[0] for piece in pieces]), parts


def node_slots_by_sort(order: EpochOrder, topology: Topology, node: int, positions: NDArray[np.int64]) -> Share:
    """The definition: slots sorted by the canonical node of the sample that they stand for, and cut. (batch, slot)."""
    low, high = node_share(positions.shape[1], topology, node)
    lanes, parts = order.lanes_and_parts(order.source(positions.ravel()))
    lanes = lanes.astype(smallest_type(order.n_canonical_nodes))
    mine = np.argsort(lanes.reshape(positions.shape), axis=1, kind="stable")[:, low:high]
    dealt_by = None if order.mixed else np.take_along_axis(parts.reshape(positions.shape), mine, axis=1)
    return np.take_along_axis(positions, mine, axis=1), dealt_by


def _of_units(
    order: EpochOrder, merge: UnitMerge, topology: Topology, node: int, starts: NDArray[np.int64], n_slots: int
) -> Share:
    return node_slots_by_sort(order, topology, node, starts.reshape(-1, 1) + np.arange(n_slots) * merge.unit)


def _of_one_order_each(
    order: EpochOrder, merge: UnitMerge, topology: Topology, node: int, starts: NDArray[np.int64], n_slots: int
) -> NDArray[np.int64]:
    """Each batch is a unit, of consecutive positions of one order; all orders have equal canonical nodes."""
    _, numbers = merge.find_units(starts // merge.unit)
    own_starts = numbers * merge.unit
    positions = node_positions(order.parts[0].grid, own_starts, n_slots, topology, node)
    return positions + (starts - own_starts).reshape(-1, 1)


def _of_merged(
    order: EpochOrder, merge: EvenMerge, topology: Topology, node: int, starts: NDArray[np.int64], n_slots: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Orders merged sample by sample: a batch has a stretch of each, so each canonical node's slots can be counted."""
    low, high = node_share(n_slots, topology, node)
    begins, ends = merge.all_counts(starts), merge.all_counts(starts + n_slots)
    grids = [part.grid for part in order.parts]
    steps = [steps_to_lanes(grid, begins[:, i]) for i, grid in enumerate(grids)]
    counts = [lane_counts(grid, steps[i], (ends - begins)[:, i : i + 1]) for i, grid in enumerate(grids)]
    totals = np.sum(counts, axis=0)
    lane_ends = np.cumsum(totals, axis=1)
    lane_begins = lane_ends - totals
    met = (lane_ends > low) & (lane_begins < high)
    columns: list[tuple[NDArray[np.int64], ...]] = []
    for i, grid in enumerate(grids):
        n_here = np.where(met, counts[i], 0).ravel()
        cell = np.repeat(np.arange(len(n_here)), n_here)  # (batch, lane) as one number
        within = np.arange(len(cell)) - np.repeat(np.cumsum(n_here) - n_here, n_here)
        own = (begins[:, i : i + 1] + steps[i]).ravel()[cell] + within * grid.n_lanes
        columns.append((cell, merge.positions(i, own), np.full(len(cell), i, np.int64)))
    cells, positions, parts = (np.concatenate(column) for column in zip(*columns))
    # Only canonical nodes that are cut between nodes need the order of their slots.
    is_cut = (met & ((lane_begins < low) | (lane_ends > high))).ravel()[cells]
    at_cut = np.flatnonzero(is_cut)
    at_cut = at_cut[np.lexsort((positions[at_cut], cells[at_cut]))]
    cut_cells = cells[at_cut]
    slot = np.arange(len(at_cut)) - np.searchsorted(cut_cells, cut_cells, "left") + lane_begins.ravel()[cut_cells]
    kept = np.concatenate([np.flatnonzero(~is_cut), at_cut[(slot >= low) & (slot < high)]])
    kept = kept[np.argsort(cells[kept] // order.n_canonical_nodes, kind="stable")]
    shape = len(starts), high - low
    return positions[kept].reshape(shape), parts[kept].reshape(shape)
