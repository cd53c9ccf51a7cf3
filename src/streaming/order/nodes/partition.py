"""From positions to nodes and ranks: which slots of a global batch each of them gets.

The slots of a batch are sorted by canonical node (stably) and cut into one piece per node, which holds what the groups
of the node are due. (A group is one rank, or several that get the same samples.) Group r of R is due slots
`floor(mr/R)` to `floor(m(r+1)/R)` of m.

When shuffling, a node puts its slots in keyed random order, sorted by sub-order first where streams have sub-orders of
their own, and deals them round-robin to its groups. Each group then puts its own slots in keyed random order. So a
device batch, and every segment of it, is a fair sample of the node's shards.

Without shuffle nothing is permuted. A node's piece is in order of position, and its groups take turns: the first of R
groups gets slots 0, R, 2R, … of it. With one node and one canonical node, group r gets the positions that are r modulo
R, as under PyTorch's `DistributedSampler`.

Where batches are composed exactly, all of this is done for the slots of each stream on its own, one stream after the
other: a batch has equally many samples of a stream for each group, so each is due a whole number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching.even_merge import EvenMerge
from streaming.order.batching.exact_merge import ExactMerge
from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.bits import Purpose, bits, derive_key, smallest_type
from streaming.order.epoch import EpochOrder
from streaming.order.grid import CanonicalNodeGrid
from streaming.order.nodes.topology import Topology


@dataclass(frozen=True, slots=True)
class SlotKeys:
    """Keys of the two random orders of slots: in a node, and in a rank."""

    node_deal: int
    rank_order: int

    @classmethod
    def of(cls, seed: int, epoch: int) -> SlotKeys:
        """Derive the keys of an epoch."""
        return cls(derive_key(seed, epoch, Purpose.NODE_DEAL), derive_key(seed, epoch, Purpose.RANK_ORDER))


def node_share(n_slots: int, topology: Topology, node: int) -> tuple[int, int]:
    """Return the slots that a node gets of a batch of `n_slots`: first, and one past the last."""
    groups = topology.groups_of(node)
    return n_slots * groups.start // topology.n_groups, n_slots * groups.stop // topology.n_groups


def canonical_nodes_of_node(
    grid: CanonicalNodeGrid, starts: NDArray[np.int64], n_slots: int, topology: Topology, node: int
) -> NDArray[np.int64]:
    """Return the canonical nodes that a node reads in the batches that begin at `starts`.

    int64 (batch,) -> int64 (canonical node,), ascending.
    """
    low, high = node_share(n_slots, topology, node)
    counts = slots_per_canonical_node(grid, steps_to_canonical_nodes(grid, starts), n_slots)
    ends = np.cumsum(counts, axis=1)
    return np.flatnonzero(((ends > low) & (ends - counts < high) & (counts > 0)).any(axis=0))


def node_positions(
    grid: CanonicalNodeGrid, starts: NDArray[np.int64], n_slots: int, topology: Topology, node: int
) -> NDArray[np.int64]:
    """Return what a node gets of the batches of `n_slots` positions that begin at `starts`, in closed form.

    int64 (batch,) -> int64 (batch, slot), by canonical node, then position.
    """
    low, high = node_share(n_slots, topology, node)
    # Batches that begin at equal residues are cut alike, so one shows all: if C = 1, or if C divides G.
    alike = not np.any((starts - starts[0]) % grid.n_canonical_nodes)
    piece = _piece(grid, starts[:1] if alike else starts, n_slots, low, high)
    positions: NDArray[np.int64] = piece + (starts - starts[0]).reshape(-1, 1) if alike else piece
    return positions


def rank_positions(
    positions: NDArray[np.int64],
    sub_orders: NDArray[np.int64] | None,
    topology: Topology,
    rank: int,
    keys: SlotKeys | None,
) -> NDArray[np.int64]:
    """Return what a rank gets of the `positions` of its node. int64 (batch, slot) -> int64 (batch, slot).

    `sub_orders`: the sub-order that each position comes from, shaped like `positions`; None if slots are not dealt by
    sub-order. `keys`: None without shuffle.
    """
    first_group = topology.groups_of(topology.node_of(rank)).start
    dealt_to = slice(topology.group_of(rank) - first_group, None, topology.groups_per_node)
    if keys is None:
        return np.sort(positions, axis=1)[:, dealt_to]
    mine = _in_keyed_order(positions, keys.node_deal, sub_orders, dealt_to)
    return _in_keyed_order(mine, keys.rank_order, None, slice(None))


def _in_keyed_order(
    positions: NDArray[np.int64], key: int, sub_orders: NDArray[np.int64] | None, which: slice
) -> NDArray[np.int64]:
    """Sort each row by sub-order, then by bits of its positions; keep slots `which`. (batch, slot) -> (batch, slot)."""
    n_slots = positions.shape[1]
    if n_slots < 2 or not len(positions):
        return positions[:, which]
    # The lowest bits hold the slot, the highest the sub-order: one plain sort of words.
    slot_mask = np.uint64((1 << (n_slots - 1).bit_length()) - 1)
    words = bits(key, positions)
    if sub_orders is not None:
        n_sub_order_bits = int(sub_orders.max()).bit_length()
        words >>= np.uint64(n_sub_order_bits)
        if n_sub_order_bits:
            words |= sub_orders.view(np.uint64) << np.uint64(64 - n_sub_order_bits)
    words &= ~slot_mask
    words |= np.arange(n_slots, dtype=np.uint64)
    words.sort(axis=1)
    slots = (words[:, which] & slot_mask).view(np.int64)
    return np.take_along_axis(positions, slots, axis=1)


def steps_to_canonical_nodes(grid: CanonicalNodeGrid, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the steps from each start to the next position of each canonical node: int64 (start, canonical node)."""
    return (grid.residues - starts.reshape(-1, 1)) % grid.n_canonical_nodes


def slots_per_canonical_node(
    grid: CanonicalNodeGrid, steps: NDArray[np.int64], n_slots: int | NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count the positions of each canonical node in `n_slots`, by the steps to its first: (start, canonical node)."""
    return (n_slots - steps + grid.n_canonical_nodes - 1) // grid.n_canonical_nodes


def _piece(grid: CanonicalNodeGrid, starts: NDArray[np.int64], n_slots: int, low: int, high: int) -> NDArray[np.int64]:
    """Return the positions of slots low..high-1 of each batch sorted by canonical node: int64 (batch, slot)."""
    steps = steps_to_canonical_nodes(grid, starts)
    counts = slots_per_canonical_node(grid, steps, n_slots)
    ends = np.cumsum(counts, axis=1)
    begins = ends - counts
    mine_from = np.clip(low - begins, 0, counts)
    mine = (np.clip(high - begins, 0, counts) - mine_from).ravel()
    # A piece begins at its canonical node's first position in the batch, plus C for each slot that other nodes get.
    first = (starts.reshape(-1, 1) + steps + mine_from * grid.n_canonical_nodes).ravel()
    within = np.arange(len(starts) * (high - low)) - np.repeat(np.cumsum(mine) - mine, mine)
    positions: NDArray[np.int64] = np.repeat(first, mine) + within * grid.n_canonical_nodes
    return positions.reshape(len(starts), high - low)


_LARGEST_TABLE: Final = 1 << 22

NodeSlots = tuple[NDArray[np.int64], NDArray[np.int64] | None]
"""Positions of a node's slots, int64 (batch, slot), and the sub-order of each; None if slots are not dealt by it."""


def node_pieces(
    order: EpochOrder, topology: Topology, node: int, starts: NDArray[np.int64], n_slots: int
) -> list[NodeSlots]:
    """Return what `node` gets of batches, in pieces that are dealt to its ranks one after the other; see `node_slots`.

    One piece, except where batches are composed exactly: then one for each stream that gives samples.
    """
    merge = order.merge
    if not isinstance(merge, ExactMerge):
        return [node_slots(order, topology, node, starts, n_slots)]
    units = starts // merge.unit
    pieces: list[NodeSlots] = []
    for number, share in enumerate(merge.composition):
        if share:
            grid, n_here = order.sub_orders[number].grid, n_slots // merge.unit * share
            own = node_positions(grid, units * share, n_here, topology, node)
            pieces.append((merge.positions(number, own), None))
    return pieces


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
        return positions, merge.find(positions.ravel())[0].reshape(positions.shape)
    n_at_once = max(1, _LARGEST_TABLE // (order.n_canonical_nodes * len(order.sub_orders)))
    pieces = [
        _of_merged(order, merge, topology, node, starts[first : first + n_at_once], n_slots)
        for first in range(0, len(starts), n_at_once)
    ]
    positions, sub_orders = (np.concatenate(column) for column in zip(*pieces))
    return positions, sub_orders


def node_slots_by_sort(order: EpochOrder, topology: Topology, node: int, positions: NDArray[np.int64]) -> NodeSlots:
    """Return what `node` gets of slots (batch, slot) by definition: sort them by canonical node, and cut.

    The canonical node of padding is that of the sample that it repeats.
    """
    low, high = node_share(positions.shape[1], topology, node)
    canonical_nodes, sub_orders = order.locate(order.source(positions.ravel()))
    canonical_nodes = canonical_nodes.astype(smallest_type(order.n_canonical_nodes))
    mine = np.argsort(canonical_nodes.reshape(positions.shape), axis=1, kind="stable")[:, low:high]
    dealt_by = None if order.merge is None else np.take_along_axis(sub_orders.reshape(positions.shape), mine, axis=1)
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
