"""The order of one epoch: a function from positions to sample ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError, SampleIndexError
from streaming.order.batching.exact_merge import ExactMerge
from streaming.order.batching.layout import EpochSettings
from streaming.order.batching.table import batching_of
from streaming.order.batching.unit_merge import UnitMerge
from streaming.order.bits import Purpose, derive_key
from streaming.order.catalog import Catalog
from streaming.order.shuffle.table import SHUFFLES
from streaming.order.spec import OrderSpec
from streaming.order.sub_orders.runs import Drawn, sum_of_run_squares, sum_of_squares
from streaming.order.sub_orders.sampling import Sampling, draw
from streaming.order.sub_orders.sub_order import Mixing, ShardUses, SubOrder, SubOrderReader, sub_order_reader
from streaming.order.weights import checked_draws, one_pass

MOST_DEFAULT_CANONICAL_NODES = 64
DEFAULT_BLOCK_OF_ALL = 1 << 18
"""Samples of a default block, over all canonical nodes together."""


class EpochOrder:
    """Which sample comes at which position of epoch `epoch`.

    `draws`: samples that each stream gives to the epoch, int64 (stream,); if None, every stream comes once. `unit`:
    samples of a unit, for batching methods that lay out whole batches (the global batch under `per_stream`, the batch
    size under `device_per_stream` and with an exact composition); other methods ignore it. Construction costs
    O(shards). No array of the epoch's length is ever built. Shareable between threads.
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
        """How much of each shard the epoch reads."""
        self.n_canonical_nodes, self.shuffle_block_size = self._resolved(drawn)
        batching = batching_of(spec.batching_method, spec.batch_composition)
        self.unit = _checked_unit(spec, unit, spans_ranks=batching.unit_spans_ranks) if batching.takes_units else None
        """Samples of a unit, at whose multiples reading can go on; None for batching methods without units."""
        self.deals_units = batching.unit_goes_to_one_rank
        """Whether all samples of a unit go to the same rank."""
        self.slot_samples = self.unit if self.unit is not None and self.deals_units else 1
        """Consecutive positions that go to a rank together: a unit that is dealt whole, or one."""
        layout = batching.lay_out(
            EpochSettings(
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
        if isinstance(layout.merge, ExactMerge):
            self.unit = layout.merge.unit
        algorithm = spec.shuffle_algo if spec.shuffle else None
        all_read: Sequence[int | None] = [None] * len(layout.sub_orders)
        self.sub_orders = tuple(
            SubOrder(
                catalog,
                drawn,
                sampling,
                plan.shards,
                plan.n_canonical_nodes,
                Mixing(plan.seed, epoch, algorithm, plan.block),
                n_read,
            )
            for plan, n_read in zip(layout.sub_orders, layout.n_read or all_read)
        )
        n_drawn: int = sum(self.draws.tolist())
        self.n_samples: int = n_drawn if self.merge is None else self.merge.n_positions
        self._shard_uses: dict[tuple[int, bytes], tuple[ShardUses, NDArray[np.int64]]] = {}
        key = derive_key(spec.seed, epoch, Purpose.PADDING)
        self._padding_start = key % max(1, self.n_samples // self.slot_samples) * self.slot_samples

    @property
    def left_out(self) -> NDArray[np.int64]:
        """Samples of each stream that fill no unit, which this epoch leaves out: int64 (stream,)."""
        if isinstance(self.merge, ExactMerge):
            unread: NDArray[np.int64] = self.draws - np.array(self.merge.n_read, np.int64)
            return unread
        if not isinstance(self.merge, UnitMerge):
            return np.zeros(len(self.draws), np.int64)
        left: NDArray[np.int64] = self.draws - np.array(self.merge.n_units, np.int64) * self.merge.unit
        return left

    @property
    def composition(self) -> list[int] | None:
        """Samples of each stream in every batch, in lowest terms; None unless batches are composed exactly."""
        return self.merge.composition if isinstance(self.merge, ExactMerge) else None

    @property
    def effective_algorithm(self) -> str | None:
        """The shuffle algorithm in effect; None without shuffle."""
        return self.spec.shuffle_algo if self.spec.shuffle else None

    @property
    def uses_block(self) -> bool:
        """Whether the shuffle block has any effect on this order."""
        return self.spec.shuffle and SHUFFLES[self.spec.shuffle_algo].uses_block

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions start..stop-1, int64 (position,). Raises SampleIndexError outside 0..N."""
        return self.reader().ids(np.arange(start, stop, dtype=np.int64))

    def reader(self) -> OrderReader:
        """Make a reader that keeps its windows, for one thread. To read forward, it is cheaper than `take`."""
        return OrderReader(self)

    def source(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map padding to the positions that it repeats; other positions stay. int64 (position,) -> int64 (position,).

        The result is below N. Padding (positions from N on) repeats the epoch from a keyed position on, which differs
        from epoch to epoch; where units are dealt whole, it is the first position of one.
        """
        n = self.n_samples
        return np.where(positions < n, positions, (self._padding_start + positions - n) % max(1, n))

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the canonical node and the sub-order of every position below N. (position,) -> two of (position,).

        A sub-order may have fewer canonical nodes than another, m times fewer. Each then counts as the first of m.
        """
        sub_orders, own = self.find(positions)
        if not self.deals_units:  # all sub-orders have equally many canonical nodes
            return (self.sub_orders[0].grid.locate(own)[0] if self.sub_orders else own), sub_orders
        counts = [sub_order.n_canonical_nodes for sub_order in self.sub_orders]
        most = max(counts)
        spread = np.concatenate([sub_order.grid.spread * (most // n) for sub_order, n in zip(self.sub_orders, counts)])
        first = np.cumsum(counts) - counts
        return spread[first[sub_orders] + own % np.array(counts)[sub_orders]], sub_orders

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sub-order of every position and the position there. int64 (position,) -> two of (position,)."""
        if self.merge is None:
            return np.zeros(len(positions), np.int64), positions
        return self.merge.find(positions)

    def shard_uses(self, number: int, canonical_nodes: NDArray[np.int64]) -> tuple[ShardUses, NDArray[np.int64]]:
        """Return when these canonical nodes of sub-order `number` read which shards, by first use.

        Beside the uses stand the positions of the epoch at which they begin, about, int64 (use,), ascending. The order
        keeps both, so repeated calls are cheap; neither may be changed.
        """
        key = (number, canonical_nodes.tobytes())
        kept = self._shard_uses.get(key)
        if kept is None:  # if two threads make it, both make the same
            kept = self._shard_uses[key] = self._made_shard_uses(self.sub_orders[number], canonical_nodes)
        return kept

    def _made_shard_uses(
        self, sub_order: SubOrder, canonical_nodes: NDArray[np.int64]
    ) -> tuple[ShardUses, NDArray[np.int64]]:
        uses = sub_order.uses(canonical_nodes)
        # From ranks to positions of the epoch. Only their order counts, so floats will do: they are exact to 2**53, and
        # equal inputs give equal results everywhere.
        scale = sub_order.n_canonical_nodes * (self.n_samples / max(1, sub_order.n_read))
        first = (uses.first * scale).astype(np.int64)
        ascending = np.argsort(first, kind="stable")
        return uses.pick(ascending), first[ascending]

    def _resolved(self, drawn: Drawn) -> tuple[int, int]:
        """Return the number of canonical nodes and the block: as given, or by the draw of epoch 0 for all epochs."""
        spec = self.spec
        n_canonical_nodes, block = spec.num_canonical_nodes, spec.shuffle_block_size
        if n_canonical_nodes is None or block is None:
            if drawn.samples_any and self.epoch:
                sampling = Sampling.of(spec.seed, spec.sampling_method, 0, spec.sampling_granularity)
                drawn = draw(self.catalog, self.draws, sampling)
            n_canonical_nodes = n_canonical_nodes or _default_canonical_nodes(spec, self.catalog, drawn)
            block = block or _default_block(n_canonical_nodes, self.catalog, drawn)
        return n_canonical_nodes, block


class OrderReader:
    """Reads an epoch at any positions, fastest in ascending order. Owns the windows it stands in. For one thread."""

    def __init__(self, order: EpochOrder) -> None:
        self._n_samples = order.n_samples
        self._merge = order.merge
        self._readers: tuple[SubOrderReader, ...] = tuple(map(sub_order_reader, order.sub_orders))

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample ids at positions. int64 (position,) -> int64 (position,).

        Raises SampleIndexError outside 0..N-1.
        """
        if not len(positions):
            return np.zeros(0, np.int64)
        lowest, highest = int(positions.min()), int(positions.max())
        if lowest < 0 or highest >= self._n_samples:
            raise SampleIndexError(
                f"positions {lowest}..{highest} are not all in an epoch of {self._n_samples} samples"
            )
        if self._merge is None:
            return self._readers[0].ids(positions)
        sub_orders, indices = self._merge.find(positions)
        ids = np.empty(len(positions), np.int64)
        for number, reader in enumerate(self._readers):
            mine = np.flatnonzero(sub_orders == number)
            if len(mine):
                ids[mine] = reader.ids(indices[mine])
        return ids


def rows_drawn(order: EpochOrder) -> NDArray[np.int64]:
    """Return the number of samples that the epoch takes from each shard, int64 (shard,)."""
    return order.drawn.rows(order.catalog)


def _checked_unit(spec: OrderSpec, unit: object, *, spans_ranks: bool) -> int:
    what = "the global batch" if spans_ranks else "the batch size"
    if unit is None:
        raise OptionError(f"{spec.batches} needs `unit`, the samples of a unit: {what}")
    if isinstance(unit, bool) or not isinstance(unit, int | np.integer) or not 1 <= unit < 1 << 42:
        raise OptionError(f"unit, {what}, must be a whole number, 1 or more and below 2**42, got {unit!r}")
    return int(unit)


def _default_canonical_nodes(spec: OrderSpec, catalog: Catalog, drawn: Drawn) -> int:
    """Return the largest power of two up to min(64, E/4), at least 1, in integer arithmetic.

    E = (Σz)²/Σz² is the effective number of shards.
    """
    if not spec.shuffle:
        return 1
    rows = drawn.rows(catalog)
    square_of_sum, squares = int(rows.sum()) ** 2, sum_of_squares(rows)
    n_canonical_nodes = 1
    while squares and 2 * n_canonical_nodes <= MOST_DEFAULT_CANONICAL_NODES:
        if 4 * 2 * n_canonical_nodes * squares > square_of_sum:
            break
        n_canonical_nodes *= 2
    return n_canonical_nodes


def _default_block(n_canonical_nodes: int, catalog: Catalog, drawn: Drawn) -> int:
    """Return 2¹⁸ samples over all canonical nodes, but at least 4 z' in each: z' = Σz²/Σz is the typical run length."""
    squares, n_drawn = sum_of_run_squares(catalog, drawn), int(drawn.rows(catalog).sum())
    typical = 4 * squares // max(1, n_drawn)
    return max(DEFAULT_BLOCK_OF_ALL // n_canonical_nodes, typical, 1)
