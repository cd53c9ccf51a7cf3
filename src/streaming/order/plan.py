"""Who gets what from a cursor on: the batches of one epoch for one topology and batch size."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.epoch import EpochOrder
from streaming.order.partition import SlotKeys, lanes_of_node, node_positions, node_slots, rank_positions
from streaming.order.topology import Topology
from streaming.order.uses import LanesFrom, uses_of_node

REMAINDERS: Final = ("pad", "drop", "exact")
_LARGEST_TABLE: Final = 1 << 22


class EpochPlan:
    """Batch k is positions `start + kG .. start + (k+1)G - 1` of the order, up to `stop`; G = batch_size × ranks.

    `start`: samples that were consumed before; from the order's length on, nothing is left. `remainder`: `"pad"`
    repeats samples until every rank has as many as the others, `"drop"` cuts instead, `"exact"` does neither, so ranks
    differ by at most one sample. Immutable, and shareable between threads.
    """

    def __init__(
        self, order: EpochOrder, topology: Topology, batch_size: int, start: int = 0, remainder: str = "pad"
    ) -> None:
        if batch_size < 1:
            raise OptionError(f"batch_size must be 1 or more, got {batch_size}")
        if start < 0:
            raise OptionError(f"start must be 0 or more, got {start}")
        if remainder not in REMAINDERS:
            raise OptionError(f"remainder must be one of {', '.join(map(repr, REMAINDERS))}; got {remainder!r}")
        self.order = order
        self.topology = topology
        self.batch_size = batch_size
        self.start = start
        self.remainder = remainder
        self.global_batch = batch_size * topology.n_ranks
        self.stop = start + _kept(max(0, order.n_samples - start), topology.n_ranks, remainder)
        self.n_batches = -(-(self.stop - start) // self.global_batch)
        self._keys = SlotKeys.of(order.spec.seed, order.epoch) if order.spec.shuffle else None
        # Batches of which the canonical nodes are known in closed form: whole ones without padding.
        in_closed_form = order.merge is None or order.n_canonical_nodes == 1
        self._n_regular = (min(self.stop, order.n_samples) - start) // self.global_batch if in_closed_form else 0
        self._n_regular = max(0, self._n_regular)

    def source(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions that padding repeats; others stay. int64 (position,) -> int64 (position,), all below N."""
        return self.order.source(positions)

    def batch_positions(self, k: int, rank: int) -> NDArray[np.int64]:
        """The positions that `rank` gets in batch `k`, int64 (position,); those from N on are padding."""
        return self.rank_batches(rank, np.array([k], np.int64))[0]

    def rank_batches(self, rank: int, ks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The positions that `rank` gets in batches `ks` (ascending), one after the other, and how many in each.

        int64 (batch,) -> int64 (position,), int64 (batch,). Many batches in one call cost little more than one.
        """
        if not 0 <= rank < self.topology.n_ranks:
            raise OptionError(f"rank must be 0 or more and below {self.topology.n_ranks}, got {rank}")
        if len(ks) and not 0 <= int(ks[0]) <= int(ks[-1]) < self.n_batches:
            raise OptionError(f"batches {int(ks[0])}..{int(ks[-1])} are not all in 0..{self.n_batches - 1}")
        n_regular = int(np.searchsorted(ks, self._n_regular, "left"))
        blocks = []
        if n_regular:
            starts = self.start + ks[:n_regular] * self.global_batch
            node = self.topology.node_of(rank)
            positions = node_positions(self.order.parts[0].grid, starts, self.global_batch, self.topology, node)
            blocks.append(rank_positions(positions, self.global_batch, self.topology, rank, self._keys))
        blocks += [self._rank_slots(k, rank) for k in ks[n_regular:].tolist()]
        lengths = np.array([block.shape[1] for block in blocks for _ in range(len(block))], np.int64)
        return np.concatenate([np.zeros(0, np.int64), *(block.ravel() for block in blocks)]), lengths

    def node_batch(self, k: int, node: int) -> NDArray[np.int64]:
        """The positions that all ranks of `node` get in batch `k`, by canonical node, int64 (position,)."""
        first = self.start + k * self.global_batch
        positions = np.arange(first, min(first + self.global_batch, self.stop), dtype=np.int64)
        return positions[node_slots(self.order.canonical_nodes(self.source(positions)), self.topology, node)]

    def first_uses(self, node: int, position: int, limit: int) -> NDArray[np.int64]:
        """Shards that `node` needs at or after `position`, in order of first use, each once: int64 (≤ limit,).

        From closed forms, so the order is approximate and a shard just done with may still be listed, at the end; but
        none that is needed is missing (padding excepted).
        """
        return uses_of_node(self.order, self._lanes_of(node, position), limit)

    def _rank_slots(self, k: int, rank: int) -> NDArray[np.int64]:
        """What `rank` gets in one batch of any kind, int64 (1, position)."""
        n_slots = min(self.global_batch, self.stop - self.start - k * self.global_batch)
        positions = self.node_batch(k, self.topology.node_of(rank))[None, :]
        return rank_positions(positions, n_slots, self.topology, rank, self._keys)

    def _lanes_of(self, node: int, position: int) -> list[LanesFrom]:
        """Which canonical nodes a node reads, and from where on."""
        all_lanes = [LanesFrom(np.arange(self.order.n_canonical_nodes, dtype=np.int64), position)]
        if self.topology.n_nodes == 1 or self.order.n_canonical_nodes == 1:
            return all_lanes
        if self.order.merge is not None:  # no closed form: canonical nodes of merged streams do not take turns
            return all_lanes
        grid = self.order.parts[0].grid
        reads = []
        if self._n_regular:
            # Batches that begin at equal residues are cut alike.
            period = grid.n_lanes // math.gcd(grid.n_lanes, self.global_batch)
            if min(period, self._n_regular) * grid.n_lanes > _LARGEST_TABLE:
                return all_lanes
            starts = self.start + self.global_batch * np.arange(min(period, self._n_regular), dtype=np.int64)
            lanes = lanes_of_node(grid, starts, self.global_batch, self.topology, node)
            reads.append(LanesFrom(lanes, position))
        if self._n_regular < self.n_batches:  # the last batch is cut in another way
            last = self.node_batch(self.n_batches - 1, node)
            last = last[last < self.order.n_samples]
            if len(last):
                lanes = np.unique(self.order.canonical_nodes(last))
                reads.append(LanesFrom(lanes, max(position, int(last.min()))))
        return reads

    @property
    def n_regular_batches(self) -> int:
        """How many batches, from the first on, are whole, free of padding and cut in closed form."""
        return self._n_regular


def _kept(left: int, n_ranks: int, remainder: str) -> int:
    """How many of the samples that are left an epoch delivers."""
    if remainder == "exact":
        return left
    return (-(-left // n_ranks) if remainder == "pad" else left // n_ranks) * n_ranks
