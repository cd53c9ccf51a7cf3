"""What a batching method decides: which orders an epoch consists of, and how they take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import Purpose, derive_key
from streaming.order.catalog import Catalog


@dataclass(frozen=True, eq=False, slots=True)
class Epoch:
    """All that a layout depends on."""

    catalog: Catalog
    draws: NDArray[np.int64]
    """Samples that each stream gives, int64 (stream,)."""
    seed: int
    epoch: int
    shuffle: bool
    n_canonical_nodes: int
    block: int
    unit: int
    """Samples of a unit, where streams take turns by units."""


@dataclass(frozen=True, eq=False, slots=True)
class PartPlan:
    """One order: of which shards, int64 (shard,), in how many canonical nodes, with which seed and block."""

    shards: NDArray[np.int64]
    n_lanes: int
    seed: int
    block: int


class Interleave(Protocol):
    """Which order each position comes from, and which position it has there."""

    @property
    def n_positions(self) -> int:
        """How many positions there are."""

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of the order of every position, and the position there. int64 (position,) -> two of the same."""

    def counts(self, position: int) -> list[int]:
        """For each order, a position of it that nothing from `position` on lies before; the highest where possible."""


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """The orders of an epoch, and how they are merged; one order alone may go without."""

    parts: list[PartPlan]
    merge: Interleave | None
    mixed: bool
    """Whether the orders are parts of one shuffle: then a rank's batch is not sorted by them."""


class Batching(Protocol):
    """A batching method."""

    @property
    def takes_units(self) -> bool:
        """Whether streams take turns by units, whose size the order then depends on."""

    @property
    def unit_goes_to_one_rank(self) -> bool:
        """Whether a unit is dealt whole."""

    def lay_out(self, epoch: Epoch) -> Layout:
        """How the streams share an epoch."""


def shards_of_streams(catalog: Catalog) -> list[NDArray[np.int64]]:
    """The shards of each stream, int64 (shard,) each."""
    shards = np.arange(catalog.n_shards, dtype=np.int64)
    return np.split(shards, np.cumsum(catalog.shards_per_stream)[:-1]) if catalog.n_streams else []


def stream_orders(epoch: Epoch, n_lanes: list[int]) -> list[PartPlan]:
    """An order of its own for each stream, with its share of the block; `n_lanes`: canonical nodes of each."""
    total = max(1, sum(epoch.draws.tolist()))
    return [
        PartPlan(
            shards,
            n_lanes[stream],
            derive_key(epoch.seed, stream, Purpose.STREAM),  # else streams of equal sizes would be shuffled alike
            max(1, epoch.block * n // total),
        )
        for stream, (shards, n) in enumerate(zip(shards_of_streams(epoch.catalog), epoch.draws.tolist()))
    ]
