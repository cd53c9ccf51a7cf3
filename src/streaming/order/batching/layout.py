"""What a batching method decides: which sub-orders make up an epoch, and how they take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import Purpose, derive_key
from streaming.order.catalog import Catalog


@dataclass(frozen=True, eq=False, slots=True)
class EpochSettings:
    """Everything that a batch layout depends on."""

    catalog: Catalog
    draws: NDArray[np.int64]
    """Samples that each stream gives to the epoch, int64 (stream,)."""
    seed: int
    epoch: int
    shuffle: bool
    n_canonical_nodes: int
    block: int
    """Shuffle block, in samples of a canonical node."""
    unit: int
    """What a method that takes units calls one: samples in a global batch, or in a batch of one rank."""


@dataclass(frozen=True, eq=False, slots=True)
class SubOrderPlan:
    """A sub-order to make: its shards, int64 (shard,), canonical nodes, seed and shuffle block."""

    shards: NDArray[np.int64]
    n_canonical_nodes: int
    seed: int
    block: int


class Interleave(Protocol):
    """How sub-orders take turns: which sub-order each position of the epoch comes from, and its position there."""

    @property
    def n_positions(self) -> int:
        """The number of positions in the epoch."""

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sub-order of every position and the position there. int64 (position,) -> two of (position,)."""

    def counts(self, position: int) -> list[int]:
        """Return a lower bound on the positions of each sub-order from `position` on; tight where possible."""


@dataclass(frozen=True, eq=False, slots=True)
class BatchLayout:
    """The sub-orders of an epoch, and how they are merged; `merge` may be None for a single one."""

    sub_orders: list[SubOrderPlan]
    merge: Interleave | None
    n_read: Sequence[int] | None = None
    """Positions of each sub-order that the epoch reads, from the first on; None: all, but perhaps for a few."""


class Batching(Protocol):
    """A batching method."""

    @property
    def takes_units(self) -> bool:
        """Whether batches are laid out by units. The order then depends on the size of a unit."""

    @property
    def unit_goes_to_one_rank(self) -> bool:
        """Whether all samples of a unit go to the same rank."""

    @property
    def unit_spans_ranks(self) -> bool:
        """Whether a unit is a global batch; otherwise it is the batch of one rank."""

    def lay_out(self, epoch: EpochSettings) -> BatchLayout:
        """Lay out the sub-orders of an epoch."""


def shards_of_streams(catalog: Catalog) -> list[NDArray[np.int64]]:
    """Return the shards of each stream, int64 (shard,) each."""
    shards = np.arange(catalog.n_shards, dtype=np.int64)
    return np.split(shards, np.cumsum(catalog.shards_per_stream)[:-1]) if catalog.n_streams else []


def sub_order_per_stream(epoch: EpochSettings, n_canonical_nodes: list[int]) -> list[SubOrderPlan]:
    """Plan one sub-order per stream, with `n_canonical_nodes[stream]` canonical nodes and its share of the block."""
    total = max(1, sum(epoch.draws.tolist()))
    return [
        SubOrderPlan(
            shards,
            n_canonical_nodes[stream],
            derive_key(epoch.seed, stream, Purpose.STREAM),  # otherwise streams of equal sizes would be shuffled alike
            max(1, epoch.block * n // total),
        )
        for stream, (shards, n) in enumerate(zip(shards_of_streams(epoch.catalog), epoch.draws.tolist()))
    ]
