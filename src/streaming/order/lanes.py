"""One order: runs dealt into canonical nodes, each shuffled inside itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.bits import Purpose, bits, chained_bits, derive_key
from streaming.order.catalog import Catalog
from streaming.order.grid import LaneGrid
from streaming.order.runs import Runs, lay_runs
from streaming.order.shuffle.protocol import LaneShuffle, PointShuffle, RunUses
from streaming.order.shuffle.table import SHUFFLES, STORED, Lanewise, Pointwise

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
class _Lane:
    """A canonical node: its runs in the order of this epoch, and their shuffle."""

    shard: NDArray[np.int64]
    offsets: NDArray[np.int64]
    id_base: NDArray[np.int64]
    """Sample id minus place, for every run: int64 (run,)."""
    shuffle: LaneShuffle


class PartReader(Protocol):
    """Reads one order."""

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids at positions of this order. int64 (position,) -> int64 (position,)."""


class Part:
    """The order of one group of shards; an epoch is one part, or several merged.

    Shareable between threads: canonical nodes are made when first asked for, and making one twice does no harm.
    """

    def __init__(
        self, catalog: Catalog, passes: NDArray[np.int64], shards: NDArray[np.int64], n_lanes: int, mixing: Mixing
    ) -> None:
        self._mixing = mixing
        self._runs = _deal(catalog, passes, shards, mixing)
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._runs.n_rows)])
        self._first_sample = catalog.first_sample
        self.grid = LaneGrid(int(self._offsets[-1]), n_lanes)
        self._id_base = self._id_bases(self._runs, self._offsets)
        self._lanes: list[_Lane | None] = [None] * n_lanes
        algorithm = mixing.algorithm
        self._point_shuffle: PointShuffle | None = None
        if isinstance(algorithm, Pointwise):
            self._point_shuffle = algorithm.make(self.grid, derive_key(mixing.seed, mixing.epoch, Purpose.BIJECTION))
        else:
            self._check_windows()

    @property
    def n_samples(self) -> int:
        """How many positions this order has."""
        return self.grid.n_places

    def reader(self) -> PartReader:
        """A fresh reader, for one thread."""
        if self._point_shuffle is not None:
            return _PointReader(self._point_shuffle, self._offsets, self._id_base)
        return _WindowReader(self)

    def lane(self, number: int) -> _Lane:
        """Canonical node `number`; for shuffles that work inside canonical nodes."""
        lane = self._lanes[number]
        if lane is None:
            lane = self._lanes[number] = self._make_lane(number)
        return lane

    def uses(self, lanes: NDArray[np.int64]) -> ShardUses:
        """When these canonical nodes read which shards."""
        tables: list[ShardUses] = []
        if self._point_shuffle is not None and not self._point_shuffle.by_lane:
            lanes = lanes[:1]
        for number in lanes.tolist():
            if self._point_shuffle is not None:
                runs, shard = self._point_shuffle.uses(number, self._offsets), self._runs.shard
            else:
                lane = self.lane(number)
                runs, shard = lane.shuffle.uses(), lane.shard
            tables.append(_shard_uses(runs, shard, number))
        columns = ("shard", "lane", "first", "likely_end", "end")
        none = np.zeros(0, np.int64)
        return ShardUses(*(np.concatenate([none, *(getattr(table, name) for table in tables)]) for name in columns))

    def _make_lane(self, number: int) -> _Lane:
        runs = self._cut(int(self.grid.lane_start[number]), int(self.grid.lane_start[number + 1]))
        mixing = self._mixing
        # Stable, and one key for all pieces of a run: they stay consecutive.
        shard_bits = bits(derive_key(mixing.seed, mixing.epoch, number, Purpose.RUN_ORDER), runs.shard)
        runs = runs.pick(np.argsort(chained_bits(shard_bits, runs.pass_number), kind="stable"))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(runs.n_rows)])
        algorithm = mixing.algorithm
        assert isinstance(algorithm, Lanewise)
        key = derive_key(mixing.seed, mixing.epoch, number, Purpose.SHUFFLE)
        shuffle = algorithm.make(runs.n_rows, mixing.block, key)
        return _Lane(runs.shard, offsets, self._id_bases(runs, offsets), shuffle)

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

    def _id_bases(self, runs: Runs, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._first_sample[runs.shard] + runs.first_row - offsets[:-1]

    def _check_windows(self) -> None:
        longest = -(-self.n_samples // self.grid.n_lanes)
        if longest >= LONGEST_LANE:
            raise OptionError(
                f"a canonical node would hold {longest} samples, the limit is 2**42; raise num_canonical_nodes"
            )
        block = self._mixing.block if self._mixing.algorithm.uses_block else 0
        widest = min(int(self._runs.n_rows.max(initial=0)) + block, longest)
        if widest >= WIDEST_SPAN:
            raise OptionError(
                f"shuffling would mix windows of {widest} samples, the limit is 2**31; "
                "lower shuffle_block_size, or use shuffle_algo='naive' to mix the whole epoch"
            )


class _PointReader:
    """Reads a shuffle in closed form; keeps nothing."""

    def __init__(self, shuffle: PointShuffle, offsets: NDArray[np.int64], id_base: NDArray[np.int64]) -> None:
        self._shuffle = shuffle
        self._offsets = offsets
        self._id_base = id_base

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PartReader."""
        places = self._shuffle.places(positions)
        return self._id_base[np.searchsorted(self._offsets, places, "right") - 1] + places


class _WindowReader:
    """Reads a shuffle by windows; keeps the last window of every canonical node it has read."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._walkers: dict[int, _Walker] = {}

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See PartReader."""
        lanes, ranks = self._part.grid.locate(positions)
        if self._part.grid.n_lanes == 1:
            return self._walker(0).ids(ranks)
        # 16 bits where they suffice: numpy sorts those by radix.
        few = self._part.grid.n_lanes <= 1 << 16
        order = np.argsort(lanes.astype(np.uint16) if few else lanes, kind="stable")
        ranks = ranks[order]
        in_order = lanes[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=np.int64(-1)))
        ends = np.append(starts[1:], len(in_order))
        ids = np.empty(len(positions), np.int64)
        for lane, start, end in zip(in_order[starts].tolist(), starts.tolist(), ends.tolist()):
            ids[order[start:end]] = self._walker(lane).ids(ranks[start:end])
        return ids

    def _walker(self, lane: int) -> _Walker:
        walker = self._walkers.get(lane)
        if walker is None:
            walker = self._walkers[lane] = _Walker(self._part.lane(lane))
        return walker


class _Walker:
    """Reads one canonical node: walks on where that is cheap, jumps where it is not. Owns the chunk it stands in."""

    def __init__(self, lane: _Lane) -> None:
        self._lane = lane
        self._chunks: Iterator[NDArray[np.int64]] = iter(())
        self._chunk = np.zeros(0, np.int64)
        self._first = 0
        self._started = False

    def ids(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids at ranks of this canonical node. int64 (rank,) -> int64 (rank,)."""
        places = self._places(ranks)
        return self._lane.id_base[np.searchsorted(self._lane.offsets, places, "right") - 1] + places

    def _places(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(ranks):
            return ranks
        within = ranks - self._first
        if within.min() >= 0 and within.max() < len(self._chunk):
            return self._chunk[within]
        order = np.argsort(ranks, kind="stable")
        in_order = ranks[order]
        places = np.empty(len(ranks), np.int64)
        done = 0
        while done < len(ranks):
            self._move_to(int(in_order[done]))
            end = int(np.searchsorted(in_order, self._first + len(self._chunk), "left"))
            places[order[done:end]] = self._chunk[in_order[done:end] - self._first]
            done = end
        return places

    def _move_to(self, rank: int) -> None:
        """Makes the chunk one that holds `rank`."""
        end = self._first + len(self._chunk)
        if not self._started or rank < self._first or rank >= end + self._lane.shuffle.reach:
            self._chunks = self._lane.shuffle.walk(rank)
            self._chunk, self._first, self._started = next(self._chunks), rank, True
        while rank >= self._first + len(self._chunk):
            self._first += len(self._chunk)
            self._chunk = next(self._chunks)


def _deal(catalog: Catalog, passes: NDArray[np.int64], shards: NDArray[np.int64], mixing: Mixing) -> Runs:
    """The runs of these shards in the order in which they are dealt to canonical nodes."""
    if mixing.shuffle_algo is None:
        runs = lay_runs(catalog, passes, shards)
        return runs.pick(np.argsort(runs.pass_number, kind="stable"))
    # By seed and shard alone: all passes of a shard lie side by side, and nodes keep their shards between epochs.
    keyed = bits(derive_key(mixing.seed, Purpose.DEAL), shards)
    return lay_runs(catalog, passes, shards[np.argsort(keyed, kind="stable")])


def _shard_uses(runs: RunUses, shard: NDArray[np.int64], lane: int) -> ShardUses:
    lanes = np.full(len(runs.run), lane, np.int64)
    return ShardUses(shard[runs.run], lanes, runs.first, runs.likely_end, runs.end)
