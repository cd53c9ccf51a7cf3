"""One order: runs dealt into canonical nodes, each shuffled inside itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.bits import Purpose, bits, chained_bits, derive_key, keyed_order
from streaming.order.catalog import Catalog
from streaming.order.grid import LaneGrid
from streaming.order.shuffle.protocol import LaneShuffle, PointShuffle, RunUses
from streaming.order.shuffle.table import SHUFFLES, STORED, Lanewise, Pointwise
from streaming.order.sub_orders.rows import RowChoice
from streaming.order.sub_orders.runs import Drawn, Runs, lay_runs
from streaming.order.sub_orders.sampling import Sampling

LONGEST_LANE: Final = 1 << 42
WIDEST_SPAN: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Mixing:
    """How one order is shuffled: all that its keys and windows depend on."""

    seed: int
    epoch: int
    shuffle_algo: str | None
    """None: the stored order."""
    block: int

    @property
    def algorithm(self) -> Pointwise | Lanewise:
        """The shuffle."""
        return STORED if self.shuffle_algo is None else SHUFFLES[self.shuffle_algo]


@dataclass(frozen=True, eq=False, slots=True)
class ShardUses:
    """When the shards of an order are read: like RunUses, with shards and canonical nodes, int64 (use,) each."""

    shard: NDArray[np.int64]
    lane: NDArray[np.int64]
    first: NDArray[np.int64]
    likely_end: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class RunTable:
    """Runs one after the other: int64 (run,) each; `offsets`, where they begin among all places, (run + 1,)."""

    shard: NDArray[np.int64]
    pass_number: NDArray[np.int64]
    offsets: NDArray[np.int64]
    id_base: NDArray[np.int64]
    """Sample id minus place, where every place stands for its own row."""


@dataclass(frozen=True, eq=False, slots=True)
class Lane:
    """A canonical node: its runs in the order of this epoch, and their shuffle."""

    table: RunTable
    shuffle: LaneShuffle


class Part:
    """The order of one group of shards; an epoch is one part, or several merged.

    Shareable between threads: canonical nodes are made when first asked for, and making one twice does no harm.
    """

    def __init__(
        self,
        catalog: Catalog,
        drawn: Drawn,
        sampling: Sampling,
        shards: NDArray[np.int64],
        n_lanes: int,
        mixing: Mixing,
    ) -> None:
        self._mixing = mixing
        self._runs = _deal(catalog, drawn, shards, mixing)
        self._first_sample = catalog.first_sample
        self.table = self._table(self._runs)
        """All runs as they are dealt."""
        self._offsets = self.table.offsets
        self.grid = LaneGrid(int(self._offsets[-1]), n_lanes)
        self._lanes: list[Lane | None] = [None] * n_lanes
        algorithm = mixing.algorithm
        self.row_choice = RowChoice(
            catalog,
            drawn,
            sampling.granularity,
            sampling.row_key,
            derive_key(mixing.seed, mixing.epoch, Purpose.SHARD_ROWS) if algorithm.permutes_shards else None,
            in_stored_order=mixing.shuffle_algo is None,
        )
        self.point_shuffle: PointShuffle | None = None
        """The shuffle, if it has a closed form; else canonical nodes have theirs."""
        if isinstance(algorithm, Pointwise):
            self.point_shuffle = algorithm.make(self.grid, derive_key(mixing.seed, mixing.epoch, Purpose.BIJECTION))
        else:
            self._check_windows()

    @property
    def n_samples(self) -> int:
        """How many positions this order has."""
        return self.grid.n_places

    @property
    def block(self) -> int:
        """The shuffle block, in samples of a canonical node."""
        return self._mixing.block

    def lane(self, number: int) -> Lane:
        """Canonical node `number`; for shuffles that work inside canonical nodes."""
        lane = self._lanes[number]
        if lane is None:
            lane = self._lanes[number] = self._make_lane(number)
        return lane

    def uses(self, lanes: NDArray[np.int64]) -> ShardUses:
        """When these canonical nodes read which shards."""
        tables: list[ShardUses] = []
        lanes = lanes[lanes < self.grid.n_lanes]
        if self.point_shuffle is not None and not self.point_shuffle.by_lane:
            lanes = lanes[:1]
        for number in lanes.tolist():
            if self.point_shuffle is not None:
                runs, shard = self.point_shuffle.uses(number, self._offsets), self._runs.shard
            else:
                lane = self.lane(number)
                runs, shard = lane.shuffle.uses(), lane.table.shard
            tables.append(_shard_uses(runs, shard, number))
        columns = ("shard", "lane", "first", "likely_end", "end")
        none = np.zeros(0, np.int64)
        return ShardUses(*(np.concatenate([none, *(getattr(table, name) for table in tables)]) for name in columns))

    def _make_lane(self, number: int) -> Lane:
        runs = self._cut(int(self.grid.lane_start[number]), int(self.grid.lane_start[number + 1]))
        mixing = self._mixing
        # Stable, and one key for all pieces of a run: they stay consecutive.
        shard_bits = bits(derive_key(mixing.seed, mixing.epoch, number, Purpose.RUN_ORDER), runs.shard)
        runs = runs.pick(keyed_order(chained_bits(shard_bits, runs.pass_number)))
        algorithm = mixing.algorithm
        assert isinstance(algorithm, Lanewise)
        key = derive_key(mixing.seed, mixing.epoch, number, Purpose.SHUFFLE)
        shuffle = algorithm.make(runs.n_rows, mixing.block, key)
        return Lane(self._table(runs), shuffle)

    def _cut(self, start: int, stop: int) -> Runs:
        """The runs at dealt places start..stop-1, those at the ends cut."""
        if start == stop:
            return self._runs.pick(slice(0, 0))
        first = int(np.searchsorted(self._offsets, start, "right")) - 1
        end = int(np.searchsorted(self._offsets, stop, "left"))
        runs = self._runs.pick(slice(first, end))
        begins = np.maximum(self._offsets[first:end], start)
        ends = np.minimum(self._offsets[first + 1 : end + 1], stop)
        first_row = runs.first_row + begins - self._offsets[first:end]
        return Runs(runs.shard, runs.pass_number, first_row, ends - begins)

    def _table(self, runs: Runs) -> RunTable:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(runs.n_rows)])
        id_base = self._first_sample[runs.shard] + runs.first_row - offsets[:-1]
        return RunTable(runs.shard, runs.pass_number, offsets, id_base)

    def _check_windows(self) -> None:
        longest = -(-self.n_samples // self.grid.n_lanes)
        if longest >= LONGEST_LANE:
            raise OptionError(
                f"a canonical node would hold {longest} samples, the limit is 2**42; raise num_canonical_nodes"
            )
        block = self._mixing.block if self._mixing.algorithm.uses_block else 0
        # A ring mixes a run with a block around it; other blocks are at most a quarter longer than they should be.
        widest = min(max(int(self._runs.n_rows.max(initial=0)) + block, block + block // 4), longest)
        if widest >= WIDEST_SPAN:
            raise OptionError(
                f"shuffling would mix windows of {widest} samples, the limit is 2**31; "
                "lower shuffle_block_size, or use shuffle_algo='naive' to mix the whole epoch"
            )


def _deal(catalog: Catalog, drawn: Drawn, shards: NDArray[np.int64], mixing: Mixing) -> Runs:
    """The runs of these shards in the order in which they are dealt to canonical nodes."""
    if mixing.shuffle_algo is None:
        runs = lay_runs(catalog, drawn, shards)
        return runs.pick(np.argsort(runs.pass_number, kind="stable"))
    # By seed and shard alone: all passes of a shard lie side by side, and nodes keep their shards between epochs.
    return lay_runs(catalog, drawn, shards[keyed_order(bits(derive_key(mixing.seed, Purpose.DEAL), shards))])


def _shard_uses(runs: RunUses, shard: NDArray[np.int64], lane: int) -> ShardUses:
    lanes = np.full(len(runs.run), lane, np.int64)
    return ShardUses(shard[runs.run], lanes, runs.first, runs.likely_end, runs.end)
