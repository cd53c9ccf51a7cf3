"""From positions to nodes, ranks and workers: who gets which slots of a global batch.

The slots of a batch are sorted by canonical node (stable) and cut into one piece for every node, what its groups are
due (a group is one rank, or several that get the same): group r of R is due slots `floor(mr/R)` to `floor(m(r+1)/R)` of
m. When shuffling, a node deals its slots, by stream where streams have orders of their own, and in keyed random order,
round-robin to its groups, and each group puts its own in keyed random order: a device batch, and every stretch of it,
is a fair sample of the node's shards. Without shuffle the pieces of nodes and groups are contiguous and in order of
position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import Purpose, bits, derive_key
from streaming.order.grid import LaneGrid
from streaming.order.nodes.topology import Topology


@dataclass(frozen=True, slots=True)
class SlotKeys:
    """Keys of the two random orders in which slots are dealt."""

    node_deal: int
    rank_order: int

    @classmethod
    def of(cls, seed: int, epoch: int) -> SlotKeys:
        """The keys of an epoch."""
        return cls(derive_key(seed, epoch, Purpose.NODE_DEAL), derive_key(seed, epoch, Purpose.RANK_ORDER))


def node_share(n_slots: int, topology: Topology, node: int) -> tuple[int, int]:
    """Which slots a node gets of a batch of `n_slots`: from, and up to."""
    groups = topology.groups_of(node)
    return n_slots * groups.start // topology.n_groups, n_slots * groups.stop // topology.n_groups


def lanes_of_node(
    grid: LaneGrid, starts: NDArray[np.int64], n_slots: int, topology: Topology, node: int
) -> NDArray[np.int64]:
    """Which canonical nodes a node reads in the batches that begin at `starts`: int64 (batch,) -> int64 (lane,)."""
    low, high = node_share(n_slots, topology, node)
    counts = lane_counts(grid, steps_to_lanes(grid, starts), n_slots)
    ends = np.cumsum(counts, axis=1)
    return np.flatnonzero(((ends > low) & (ends - counts < high) & (counts > 0)).any(axis=0))


def node_positions(
    grid: LaneGrid, starts: NDArray[np.int64], n_slots: int, topology: Topology, node: int
) -> NDArray[np.int64]:
    """What a node gets of the batches that begin at `starts` and hold `n_slots` positions each, in closed form.

    int64 (batch,) -> int64 (batch, slot), by canonical node, then position.
    """
    low, high = node_share(n_slots, topology, node)
    alike = not np.any((starts - starts[0]) % grid.n_lanes)  # then one batch shows all: C = 1, or C divides G
    piece = _piece(grid, starts[:1] if alike else starts, n_slots, low, high)
    positions: NDArray[np.int64] = piece + (starts - starts[0]).reshape(-1, 1) if alike else piece
    return positions


def rank_positions(
    positions: NDArray[np.int64],
    parts: NDArray[np.int64] | None,
    n_slots: int,
    topology: Topology,
    rank: int,
    keys: SlotKeys | None,
) -> NDArray[np.int64]:
    """What a rank gets of what its node gets of batches of `n_slots`. int64 (batch, slot) -> int64 (batch, slot).

    `parts`: which order each position comes from, like `positions`, if slots are to be dealt by it. `keys` None:
    without shuffle.
    """
    group, node = topology.group_of(rank), topology.node_of(rank)
    if keys is None:
        node_from, _ = node_share(n_slots, topology, node)
        low, high = n_slots * group // topology.n_groups, n_slots * (group + 1) // topology.n_groups
        return np.sort(positions, axis=1)[:, low - node_from : high - node_from]
    dealt_to = slice(group - topology.groups_of(node).start, None, topology.groups_per_node)
    mine = _in_keyed_order(positions, keys.node_deal, parts, dealt_to)
    return _in_keyed_order(mine, keys.rank_order, None, slice(None))


def _in_keyed_order(
    positions: NDArray[np.int64], key: int, parts: NDArray[np.int64] | None, which: slice
) -> NDArray[np.int64]:
    """Each row by part, then in the order of its positions' bits; of that, these. (batch, slot) -> (batch, slot)."""
    n_slots = positions.shape[1]
    if n_slots < 2 or not len(positions):
        return positions[:, which]
    # The lowest bits make room for the slot, the highest for the part: one plain sort of words.
    slot_mask = np.uint64((1 << (n_slots - 1).bit_length()) - 1)
    words = bits(key, positions)
    if parts is not None:
        n_part_bits = int(parts.max()).bit_length()
        words >>= np.uint64(n_part_bits)
        if n_part_bits:
            words |= parts.view(np.uint64) << np.uint64(64 - n_part_bits)
    words &= ~slot_mask
    words |= np.arange(n_slots, dtype=np.uint64)
    words.sort(axis=1)
    slots = (words[:, which] & slot_mask).view(np.int64)
    return np.take_along_axis(positions, slots, axis=1)


def steps_to_lanes(grid: LaneGrid, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How far behind each start the first position of each canonical node lies, int64 (start, lane)."""
    return (grid.residue_of_lane - starts.reshape(-1, 1)) % grid.n_lanes


def lane_counts(grid: LaneGrid, steps: NDArray[np.int64], n_slots: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of `n_slots` positions each canonical node has, given the steps to its first: (start, lane)."""
    return (n_slots - steps + grid.n_lanes - 1) // grid.n_lanes


def _piece(grid: LaneGrid, starts: NDArray[np.int64], n_slots: int, low: int, high: int) -> NDArray[np.int64]:
    """The positions of slots low..high-1, sorted by canonical node, of each batch: int64 (batch, slot)."""
    steps = steps_to_lanes(grid, starts)
    counts = lane_counts(grid, steps, n_slots)
    ends = np.cumsum(counts, axis=1)
    begins = ends - counts
    mine_from = np.clip(low - begins, 0, counts)
    mine = (np.clip(high - begins, 0, counts) - mine_from).ravel()
    # The first of a stretch is at its lane's first position in the batch plus C for each slot that others have.
    first = (starts.reshape(-1, 1) + steps + mine_from * grid.n_lanes).ravel()
    within = np.arange(len(starts) * (high - low)) - np.repeat(np.cumsum(mine) - mine, mine)
    positions: NDArray[np.int64] = np.repeat(first, mine) + within * grid.n_lanes
    return positions.reshape(len(starts), high - low)
