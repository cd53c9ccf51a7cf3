"""The order of one epoch: a function from positions to sample ids, and the only door to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError, SampleIndexError
from streaming.order.batching.layout import Epoch
from streaming.order.batching.table import BATCHINGS
from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.bits import Purpose, derive_key
from streaming.order.catalog import Catalog
from streaming.order.shuffle.table import SHUFFLES
from streaming.order.spec import OrderSpec
from streaming.order.sub_orders.reader import PartReader, part_reader
from streaming.order.sub_orders.runs import Drawn, sum_of_run_squares, sum_of_squares
from streaming.order.sub_orders.sampling import Sampling, draw
from streaming.order.sub_orders.sub_order import Mixing, Part, ShardUses
from streaming.order.weights import checked_draws, one_pass

MOST_DEFAULT_CANONICAL_NODES = 64
DEFAULT_BLOCK_OF_ALL = 1 << 18


class EpochOrder:
    """Which sample comes at which position of epoch `epoch`.

    `draws`: samples that each stream gives to an epoch, int64 (stream,); without it every stream comes once. `unit`:
    samples of what streams take turns by, where the batching method is by units (the global batch under `per_stream`,
    the batch size under `device_per_stream`); others do without. Construction costs O(shards); nothing of the epoch's
    length is ever built. Shareable between threads.
    """

    def __init__(
        self,
        spec: OrderSpec,
        catalog: Catalog,
        epoch: int,
        draws: NDArray[np.int64] | None = None,
        unit: int | None = None,
    ) -> None:
        if epoch < 0:
            raise OptionError(f"epoch must be 0 or more, got {epoch}")
        self.spec = spec
        self.catalog = catalog
        self.epoch = epoch
        self.draws = one_pass(catalog) if draws is None else checked_draws(catalog, draws)
        sampling = Sampling.of(spec.seed, spec.sampling_method, epoch, spec.sampling_granularity)
        self.drawn = drawn = draw(catalog, self.draws, sampling)
        """What the epoch reads of each shard."""
        self.n_canonical_nodes, self.shuffle_block_size = self._resolved(drawn)
        batching = BATCHINGS[spec.batching_method]
        self.unit = _checked_unit(spec.batching_method, unit) if batching.takes_units else None
        """Samples of what streams take turns by; None where they do not."""
        self.deals_units = batching.unit_goes_to_one_rank
        """Whether a unit goes to one rank whole."""
        self.slot_samples = self.unit if self.unit is not None and self.deals_units else 1
        """How many consecutive positions go to a rank together."""
        layout = batching.lay_out(
            Epoch(
                catalog,
                self.draws,
                spec.seed,
                epoch,
                spec.shuffle,
                self.n_canonical_nodes,
                self.shuffle_block_size,
                self.unit or 1,
            )
        )
        self.merge = layout.merge
        self.mixed = layout.mixed
        """Whether all orders are parts of one shuffle: then slots are not dealt by order."""
        algorithm = spec.shuffle_algo if spec.shuffle else None
        self.parts = tuple(
            Part(catalog, drawn, sampling, plan.shards, plan.n_lanes, Mixing(plan.seed, epoch, algorithm, plan.block))
            for plan in layout.parts
        )
        n_drawn: int = sum(self.draws.tolist())
        self.n_samples: int = n_drawn if self.merge is None else self.merge.n_positions
        self.uses_by_lanes: dict[tuple[int, bytes], tuple[ShardUses, NDArray[np.int64]]] = {}
        """Kept for `uses`: it fills this with what depends on the order alone."""
        key = derive_key(spec.seed, epoch, Purpose.PADDING)
        self._padding_start = key % max(1, self.n_samples // self.slot_samples) * self.slot_samples

    @property
    def left_out(self) -> NDArray[np.int64]:
        """Samples of each stream that fill no unit, so this epoch goes without them: int64 (stream,)."""
        if not isinstance(self.merge, UnitMerge):
            return np.zeros(len(self.draws), np.int64)
        left: NDArray[np.int64] = self.draws - np.array(self.merge.n_units, np.int64) * self.merge.unit
        return left

    def _resolved(self, drawn: Drawn) -> tuple[int, int]:
        """Canonical nodes and block: as given, or from what epoch 0 reads, so that all epochs have the same."""
        spec = self.spec
        n_lanes, block = spec.num_canonical_nodes, spec.shuffle_block_size
        if n_lanes is None or block is None:
            if drawn.samples_any and self.epoch:
                sampling = Sampling.of(spec.seed, spec.sampling_method, 0, spec.sampling_granularity)
                drawn = draw(self.catalog, self.draws, sampling)
            n_lanes = n_lanes or _default_canonical_nodes(spec, self.catalog, drawn)
            block = block or _default_block(n_lanes, self.catalog, drawn)
        return n_lanes, block

    @property
    def effective_algorithm(self) -> str | None:
        """The shuffle that takes place; None if there is none."""
        return self.spec.shuffle_algo if self.spec.shuffle else None

    @property
    def uses_block(self) -> bool:
        """Whether the block size has any effect on this order."""
        return self.spec.shuffle and SHUFFLES[self.spec.shuffle_algo].uses_block

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Sample ids at positions start..stop-1, int64 (position,). Raises SampleIndexError outside 0..N."""
        return self.reader().ids(np.arange(start, stop, dtype=np.int64))

    def reader(self) -> OrderReader:
        """A reader with windows of its own, for one thread; cheaper than `take` for one who moves forward."""
        return OrderReader(self)

    def source(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions that padding repeats; others stay. int64 (position,) -> int64 (position,), all below N.

        Padding, positions from N on, repeats the epoch from a keyed position that differs in each epoch, at a unit
        where those are dealt whole.
        """
        n = self.n_samples
        return np.where(positions < n, positions, (self._padding_start + positions - n) % max(1, n))

    def canonical_nodes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The canonical node of every position below N. int64 (position,) -> int64 (position,)."""
        return self.lanes_and_parts(positions)[0]

    def lanes_and_parts(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The canonical node of every position below N, and the order it comes from. (position,) -> two of the same.

        The canonical nodes of an order that has fewer than others count as the first of as many of theirs.
        """
        parts, own = self.find(positions)
        if not self.deals_units:  # all orders have equally many
            return (self.parts[0].grid.locate(own)[0] if self.parts else own), parts
        n_lanes = [part.grid.n_lanes for part in self.parts]
        lanes = np.concatenate([part.grid.lane_of_residue * (max(n_lanes) // part.grid.n_lanes) for part in self.parts])
        first = np.cumsum(n_lanes) - n_lanes
        return lanes[first[parts] + own % np.array(n_lanes)[parts]], parts

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of the order that each position comes from, and the position there. (position,) -> two of it."""
        if self.merge is None:
            return np.zeros(len(positions), np.int64), positions
        return self.merge.find(positions)


class OrderReader:
    """Reads an order at any positions, in any order; fast for one who moves forward. For one thread."""

    def __init__(self, order: EpochOrder) -> None:
        self._n_samples = order.n_samples
        self._merge = order.merge
        self._parts: tuple[PartReader, ...] = tuple(part_reader(part) for part in order.parts)

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids at positions, int64 (position,) -> int64 (position,). Raises SampleIndexError outside 0..N-1."""
        if not len(positions):
            return np.zeros(0, np.int64)
        lowest, highest = int(positions.min()), int(positions.max())
        if lowest < 0 or highest >= self._n_samples:
            raise SampleIndexError(
                f"positions {lowest}..{highest} are not all in an epoch of {self._n_samples} samples"
            )
        if self._merge is None:
            return self._parts[0].ids(positions)
        parts, indices = self._merge.find(positions)
        ids = np.empty(len(positions), np.int64)
        for number, part in enumerate(self._parts):
            mine = np.flatnonzero(parts == number)
            if len(mine):
                ids[mine] = part.ids(indices[mine])
        return ids


def rows_drawn(order: EpochOrder) -> NDArray[np.int64]:
    """Samples that the epoch takes from each shard, int64 (shard,)."""
    return order.drawn.rows(order.catalog)


def _checked_unit(method: str, unit: object) -> int:
    what = "the global batch" if method == "per_stream" else "the batch size"
    if unit is None:
        raise OptionError(f"batching_method={method!r} needs `unit`, the samples of a unit: {what}")
    if isinstance(unit, bool) or not isinstance(unit, int | np.integer) or not 1 <= unit < 1 << 42:
        raise OptionError(f"unit, {what}, must be a whole number, 1 or more and below 2**42, got {unit!r}")
    return int(unit)


def _default_canonical_nodes(spec: OrderSpec, catalog: Catalog, drawn: Drawn) -> int:
    """The largest power of two up to min(64, E/4), E = (Σz)²/Σz² being the effective number of shards; in integers."""
    if not spec.shuffle:
        return 1
    rows = drawn.rows(catalog)
    square_of_sum, squares = int(rows.sum()) ** 2, sum_of_squares(rows)
    n_lanes = 1
    while 2 * n_lanes <= MOST_DEFAULT_CANONICAL_NODES and 4 * 2 * n_lanes * squares <= square_of_sum and squares:
        n_lanes *= 2
    return n_lanes


def _default_block(n_canonical_nodes: int, catalog: Catalog, drawn: Drawn) -> int:
    """2¹⁸ samples over all canonical nodes, but 4 z' in each at least: z' = Σz²/Σz is the typical length of a run."""
    squares, n_drawn = sum_of_run_squares(catalog, drawn), int(drawn.rows(catalog).sum())
    typical = 4 * squares // max(1, n_drawn)
    return max(DEFAULT_BLOCK_OF_ALL // n_canonical_nodes, typical, 1)
