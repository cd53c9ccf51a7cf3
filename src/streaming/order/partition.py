"""From positions to nodes, ranks and workers: who gets which slots of a global batch.

The slots of a batch are sorted by canonical node (stable) and cut into one piece for every node, what its ranks are
due: rank r of R is due slots `floor(mr/R)` to `floor(m(r+1)/R)` of m. When shuffling, a node deals its slots in keyed
random order round-robin to its ranks, and each rank puts its own in keyed random order: a device batch, and every
stretch of it, is a fair sample of the node's shards. Without shuffle the pieces of nodes and ranks are contiguous and
in order of position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import Purpose, bits, derive_key
from streaming.order.grid import LaneGrid
from streaming.order.topology import Topology


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
    ranks = topology.ranks_of(node)
    return n_slots * ranks.start // topology.n_ranks, n_slots * ranks.stop // topology.n_ranks


def lanes_of_node(
    grid: LaneGrid, starts: NDArray[np.int64], n_slots: int, topology: Topology, node: int
) -> NDArray[np.int64]:
    """Which canonical nodes a node reads in the batches that begin at `starts`: int64 (batch,) -> int64 (lane,)."""
    low, high = node_share(n_slots, topology, node)
    counts = _counts(grid, _steps_to_lanes(grid, starts), n_slots)
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


def node_slots(lanes: NDArray[np.int64], topology: Topology, node: int) -> NDArray[np.int64]:
    """Which slots of one batch a node gets, given the canonical node of each: int64 (slot,) -> int64 (slot,)."""
    low, high = node_share(len(lanes), topology, node)
    return np.argsort(lanes, kind="stable")[low:high]


def rank_positions(
    positions: NDArray[np.int64], n_slots: int, topology: Topology, rank: int, keys: SlotKeys | None
) -> NDArray[np.int64]:
    """What a rank gets of what its node gets of batches of `n_slots`. int64 (batch, slot) -> int64 (batch, slot).

    `keys` None: without shuffle.
    """
    if keys is None:
        node_from, _ = node_share(n_slots, topology, topology.node_of(rank))
        low, high = n_slots * rank // topology.n_ranks, n_slots * (rank + 1) // topology.n_ranks
        return np.sort(positions, axis=1)[:, low - node_from : high - node_from]
    dealt = _in_keyed_order(positions, keys.node_deal)
    mine = dealt[:, topology.local_rank_of(rank) :: topology.ranks_per_node]
    return _in_keyed_order(mine, keys.rank_order)


def _in_keyed_order(positions: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """Each row in the order of its positions' bits; (batch, slot) -> (batch, slot)."""
    n_slots = positions.shape[1]
    if n_slots < 2:
        return positions
    # The lowest bits make room for the slot: one plain sort of words.
    slot_mask = np.uint64((1 << (n_slots - 1).bit_length()) - 1)
    words = bits(key, positions)
    words &= ~slot_mask
    words |= np.arange(n_slots, dtype=np.uint64)
    words.sort(axis=1)
    words &= slot_mask
    return np.take_along_axis(positions, words.view(np.int64), axis=1)


def _steps_to_lanes(grid: LaneGrid, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How far behind each start the first position of each canonical node lies, int64 (start, lane)."""
    return (grid.residue_of_lane - starts.reshape(-1, 1)) % grid.n_lanes


def _counts(grid: LaneGrid, steps: NDArray[np.int64], n_slots: int) -> NDArray[np.int64]:
    """How many of `n_slots` positions each canonical node has, given the steps to its first: (start, lane)."""
    return (n_slots - steps + grid.n_lanes - 1) // grid.n_lanes


def _piece(grid: LaneGrid, starts: NDArray[np.int64], n_slots: int, low: int, high: int) -> NDArray[np.int64]:
    """The positions of slots low..high-1, sorted by canonical node, of each batch: int64 (batch, slot)."""
    steps = _steps_to_lanes(grid, starts)
    counts = _counts(grid, steps, n_slots)
    ends = np.cumsum(counts, axis=1)
    begins = ends - counts
    mine_from = np.clip(low - begins, 0, counts)
    mine = (np.clip(high - begins, 0, counts) - mine_from).ravel()
    # The first of a stretch is at its lane's first position in the batch plus C for each slot that others have.
    first = (starts.reshape(-1, 1) + steps + mine_from * grid.n_lanes).ravel()
    within = np.arange(len(starts) * (high - low)) - np.repeat(np.cumsum(mine) - mine, mine)
    positions: NDArray[np.int64] = np.repeat(first, mine) + within * grid.n_lanes
    return positions.reshape(len(starts), high - low)
