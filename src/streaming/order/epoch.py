"""The order of one epoch: a function from positions to sample ids, and the only door to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError, SampleIndexError
from streaming.order.batching.table import BATCHINGS
from streaming.order.bits import Purpose, derive_key
from streaming.order.catalog import Catalog
from streaming.order.lanes import Mixing, Part, ShardUses
from streaming.order.merge import EvenMerge
from streaming.order.part_reader import PartReader, part_reader
from streaming.order.runs import Drawn, sum_of_run_squares, sum_of_squares
from streaming.order.sampling import Sampling, draw
from streaming.order.shuffle.table import SHUFFLES
from streaming.order.spec import OrderSpec
from streaming.order.weights import checked_draws, one_pass

MOST_DEFAULT_CANONICAL_NODES = 64
DEFAULT_BLOCK_OF_ALL = 1 << 18


class EpochOrder:
    """Which sample comes at which position of epoch `epoch`.

    `draws`: samples that each stream gives to an epoch, int64 (stream,); without it every stream comes once.
    Construction costs O(shards); nothing of the epoch's length is ever built. Shareable between threads.
    """

    def __init__(self, spec: OrderSpec, catalog: Catalog, epoch: int, draws: NDArray[np.int64] | None = None) -> None:
        if epoch < 0:
            raise OptionError(f"epoch must be 0 or more, got {epoch}")
        self.spec = spec
        self.catalog = catalog
        self.epoch = epoch
        self.draws = one_pass(catalog) if draws is None else checked_draws(catalog, draws)
        sampling = Sampling.of(spec.seed, spec.sampling_method, epoch, spec.sampling_granularity)
        drawn = draw(catalog, self.draws, sampling)
        self.n_samples: int = sum(self.draws.tolist())
        self.n_canonical_nodes, self.shuffle_block_size = self._resolved(drawn)
        mixing = Mixing(spec.seed, epoch, spec.shuffle_algo if spec.shuffle else None, self.shuffle_block_size)
        groups = BATCHINGS[spec.batching_method](catalog, shuffle=spec.shuffle)
        self.parts = tuple(Part(catalog, drawn, sampling, shards, self.n_canonical_nodes, mixing) for shards in groups)
        self.merge = EvenMerge([part.n_samples for part in self.parts]) if len(self.parts) > 1 else None
        self.uses_by_lanes: dict[tuple[int, bytes], tuple[ShardUses, NDArray[np.int64]]] = {}
        """Kept for `uses`: it fills this with what depends on the order alone."""
        self._padding_start = derive_key(spec.seed, epoch, Purpose.PADDING) % max(1, self.n_samples)

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

        Padding, positions from N on, repeats the epoch from a keyed position that differs in each epoch.
        """
        n = self.n_samples
        return np.where(positions < n, positions, (self._padding_start + positions - n) % max(1, n))

    def canonical_nodes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The canonical node of every position below N. int64 (position,) -> int64 (position,)."""
        if self.merge is not None:
            _, positions = self.merge.find(positions)
        return self.parts[0].grid.locate(positions)[0]


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
