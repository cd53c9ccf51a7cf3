"""From positions to nodes and ranks: which slots of a global batch each of them gets.

The slots of a batch are sorted by canonical node (stably) and cut into one piece per node, which holds what the groups
of the node are due. (A group is one rank, or several that get the same samples.) Group r of R is due slots
`floor(mr/R)` to `floor(m(r+1)/R)` of m.

When shuffling, a node puts its slots in keyed random order, sorted by sub-order first where streams have sub-orders of
their own, and deals them round-robin to its groups. Each group then puts its own slots in keyed random order. So a
device batch, and every segment of it, is a fair sample of the node's shards. Without shuffle, the pieces of nodes and
groups are contiguous and in order of position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import Purpose, bits, derive_key
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
    n_slots: int,
    topology: Topology,
    rank: int,
    keys: SlotKeys | None,
) -> NDArray[np.int64]:
    """Return what a rank gets of the `positions` of its node. int64 (batch, slot) -> int64 (batch, slot).

    `sub_orders`: the sub-order that each position comes from, shaped like `positions`; None if slots are not dealt by
    sub-order. `n_slots`: slots in a global batch. `keys`: None without shuffle.
    """
    group, node = topology.group_of(rank), topology.node_of(rank)
    if keys is None:
        node_from, _ = node_share(n_slots, topology, node)
        low, high = n_slots * group // topology.n_groups, n_slots * (group + 1) // topology.n_groups
        return np.sort(positions, axis=1)[:, low - node_from : high - node_from]
    dealt_to = slice(group - topology.groups_of(node).start, None, topology.groups_per_node)
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
