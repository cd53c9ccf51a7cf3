"""One sub-order: runs dealt to canonical nodes, each shuffled inside itself; and its readers.

A reader takes positions in any order, by the closed form of a shuffle or by walks and jumps along canonical nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.bits import Purpose, bits, chained_bits, derive_key, keyed_order, smallest_type
from streaming.order.catalog import Catalog
from streaming.order.grid import CanonicalNodeGrid
from streaming.order.shuffle.protocol import PointShuffle, RunUses, WindowShuffle
from streaming.order.shuffle.table import SHUFFLES, STORED, PointAlgorithm, WindowAlgorithm
from streaming.order.sub_orders.rows import RowChoice, RowReader
from streaming.order.sub_orders.runs import Drawn, Runs, lay_runs
from streaming.order.sub_orders.sampling import Sampling

LARGEST_CANONICAL_NODE: Final = 1 << 42
WIDEST_SPAN: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Mixing:
    """How one sub-order is shuffled: everything that its keys and windows depend on."""

    seed: int
    epoch: int
    shuffle_algo: str | None
    """None: the stored order."""
    block: int
    """Shuffle block, in samples of a canonical node."""

    @property
    def algorithm(self) -> PointAlgorithm | WindowAlgorithm:
        """The shuffle algorithm."""
        return STORED if self.shuffle_algo is None else SHUFFLES[self.shuffle_algo]


@dataclass(frozen=True, eq=False, slots=True)
class ShardUses:
    """When the shards of a sub-order are read: RunUses with shards and canonical nodes, int64 (use,) each."""

    shard: NDArray[np.int64]
    canonical_node: NDArray[np.int64]
    first: NDArray[np.int64]
    likely_end: NDArray[np.int64]
    end: NDArray[np.int64]

    def pick(self, which: NDArray[np.int64]) -> ShardUses:
        """Return these uses, in this order."""
        columns = (self.shard, self.canonical_node, self.first, self.likely_end, self.end)
        return ShardUses(*(column[which] for column in columns))


@dataclass(frozen=True, eq=False, slots=True)
class RunTable:
    """Runs one after the other: int64 (run,) each. `offsets`: where they begin among all places, (run + 1,)."""

    shard: NDArray[np.int64]
    pass_number: NDArray[np.int64]
    offsets: NDArray[np.int64]
    id_base: NDArray[np.int64]
    """Sample id minus place, if every place stood for its own row."""


@dataclass(frozen=True, eq=False, slots=True)
class CanonicalNode:
    """A canonical node: its runs in the order of this epoch, and their shuffle."""

    table: RunTable
    shuffle: WindowShuffle


class SubOrder:
    """The order of one group of shards. An epoch is one sub-order, or several merged.

    Shareable between threads: canonical nodes are made when first asked for, and making one twice does no harm.
    """

    def __init__(
        self,
        catalog: Catalog,
        drawn: Drawn,
        sampling: Sampling,
        shards: NDArray[np.int64],
        n_canonical_nodes: int,
        mixing: Mixing,
        n_read: int | None = None,
    ) -> None:
        """`n_read`: positions that the epoch reads, from the first on; None: all of them."""
        self._mixing = mixing
        self._runs = _deal(catalog, drawn, shards, mixing)
        self._first_sample = catalog.first_sample
        self.table = self._table(self._runs)
        """All runs in the order in which they are dealt."""
        self._offsets = self.table.offsets
        self.grid = CanonicalNodeGrid(int(self._offsets[-1]), n_canonical_nodes)
        self.n_read = self.grid.n_places if n_read is None else n_read
        """Positions that the epoch reads, from the first on."""
        self._canonical_nodes: list[CanonicalNode | None] = [None] * n_canonical_nodes
        algorithm = mixing.algorithm
        self.row_choice: RowChoice | None = None
        """Which row a place stands for; None if each place stands for its own."""
        if algorithm.permutes_shards or drawn.samples_any:
            self.row_choice = RowChoice(
                catalog,
                drawn,
                sampling.granularity,
                sampling.row_key,
                derive_key(mixing.seed, mixing.epoch, Purpose.SHARD_ROWS) if algorithm.permutes_shards else None,
                in_stored_order=mixing.shuffle_algo is None,
            )
        self.point_shuffle: PointShuffle | None = None
        """The shuffle, if it has a closed form; otherwise each canonical node has its own."""
        if isinstance(algorithm, PointAlgorithm):
            self.point_shuffle = algorithm.make(self.grid, derive_key(mixing.seed, mixing.epoch, Purpose.BIJECTION))
        else:
            self._check_windows()

    @property
    def n_samples(self) -> int:
        """The number of positions in this sub-order."""
        return self.grid.n_places

    @property
    def n_canonical_nodes(self) -> int:
        """The number of canonical nodes of this sub-order."""
        return self.grid.n_canonical_nodes

    @property
    def block(self) -> int:
        """The shuffle block, in samples of a canonical node."""
        return self._mixing.block

    def canonical_node(self, number: int) -> CanonicalNode:
        """Return canonical node `number`. Only for shuffles that work inside canonical nodes."""
        canonical_node = self._canonical_nodes[number]
        if canonical_node is None:
            canonical_node = self._canonical_nodes[number] = self._make_canonical_node(number)
        return canonical_node

    def uses(self, canonical_nodes: NDArray[np.int64]) -> ShardUses:
        """Return when these canonical nodes read which shards."""
        tables: list[ShardUses] = []
        canonical_nodes = canonical_nodes[canonical_nodes < self.n_canonical_nodes]
        if self.point_shuffle is not None and not self.point_shuffle.by_canonical_node:
            canonical_nodes = canonical_nodes[:1]
        for number in canonical_nodes.tolist():
            if self.point_shuffle is not None:
                runs, shard = self.point_shuffle.uses(number, self._offsets), self._runs.shard
            else:
                canonical_node = self.canonical_node(number)
                runs, shard = canonical_node.shuffle.uses(), canonical_node.table.shard
            tables.append(_shard_uses(runs, shard, number))
        columns = ("shard", "canonical_node", "first", "likely_end", "end")
        none = np.zeros(0, np.int64)
        return ShardUses(*(np.concatenate([none, *(getattr(table, name) for table in tables)]) for name in columns))

    def is_read(self, uses: ShardUses) -> NDArray[np.bool_]:
        """Return which of these uses begin, about, before the epoch has read what it reads: bool (use,)."""
        if self.n_read == self.n_samples:
            return np.ones(len(uses.shard), np.bool_)
        every = np.arange(self.n_canonical_nodes, dtype=np.int64)
        read: NDArray[np.bool_] = uses.first < self.grid.first_ranks(every, self.n_read)[uses.canonical_node]
        return read

    def _make_canonical_node(self, number: int) -> CanonicalNode:
        runs = self._cut(int(self.grid.starts[number]), int(self.grid.starts[number + 1]))
        mixing = self._mixing
        # A stable sort, and one key for all pieces of a run: they stay consecutive.
        shard_bits = bits(derive_key(mixing.seed, mixing.epoch, number, Purpose.RUN_ORDER), runs.shard)
        runs = runs.pick(keyed_order(chained_bits(shard_bits, runs.pass_number)))
        algorithm = mixing.algorithm
        assert isinstance(algorithm, WindowAlgorithm)
        key = derive_key(mixing.seed, mixing.epoch, number, Purpose.SHUFFLE)
        shuffle = algorithm.make(runs.n_rows, mixing.block, key)
        return CanonicalNode(self._table(runs), shuffle)

    def _cut(self, start: int, stop: int) -> Runs:
        """Return the runs at dealt places start..stop-1, with those at both ends cut."""
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
        longest = -(-self.n_samples // self.n_canonical_nodes)
        if longest >= LARGEST_CANONICAL_NODE:
            raise OptionError(
                f"a canonical node would hold {longest} samples, the limit is 2**42; raise num_canonical_nodes"
            )
        block = self._mixing.block if self._mixing.algorithm.uses_block else 0
        # A ring mixes a run with the block around it; other blocks are at most a quarter longer than nominal.
        widest = min(max(int(self._runs.n_rows.max(initial=0)) + block, block + block // 4), longest)
        if widest >= WIDEST_SPAN:
            raise OptionError(
                f"shuffling would mix windows of {widest} samples, the limit is 2**31; "
                "lower shuffle_block_size, or use shuffle_algo='naive' to mix the whole epoch"
            )


def _deal(catalog: Catalog, drawn: Drawn, shards: NDArray[np.int64], mixing: Mixing) -> Runs:
    """Return the runs of these shards in the order in which they are dealt to canonical nodes."""
    if mixing.shuffle_algo is None:
        runs = lay_runs(catalog, drawn, shards)
        # Stream after stream, each pass by pass. The sort is stable: a pass keeps the order of its shards.
        return runs.pick(np.lexsort((runs.pass_number, catalog.stream_of_shard[runs.shard])))
    # Keyed by seed and shard alone: all passes of a shard lie side by side, and nodes keep their shards between epochs.
    return lay_runs(catalog, drawn, shards[keyed_order(bits(derive_key(mixing.seed, Purpose.DEAL), shards))])


def _shard_uses(runs: RunUses, shard: NDArray[np.int64], canonical_node: int) -> ShardUses:
    canonical_nodes = np.full(len(runs.run), canonical_node, np.int64)
    return ShardUses(shard[runs.run], canonical_nodes, runs.first, runs.likely_end, runs.end)


class SubOrderReader(Protocol):
    """Reads one sub-order."""

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample ids at positions of the sub-order. int64 (position,) -> int64 (position,)."""


def sub_order_reader(sub_order: SubOrder) -> SubOrderReader:
    """Make a reader, for one thread."""
    rows = None if sub_order.row_choice is None else RowReader(sub_order.row_choice)
    if sub_order.point_shuffle is not None:
        return _PointReader(sub_order.point_shuffle, sub_order.table, rows)
    return _WindowReader(sub_order, rows)


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """Sample ids, as if every place stood for its own row; and the shard and pass of each, if wanted."""

    ids: NDArray[np.int64]
    shards: NDArray[np.int64]
    pass_numbers: NDArray[np.int64]

    @classmethod
    def empty(cls, n: int, with_runs: bool) -> _Found:
        """Make room for `n` samples."""
        n_runs = n if with_runs else 0
        return cls(np.empty(n, np.int64), np.empty(n_runs, np.int64), np.empty(n_runs, np.int64))

    def fill(self, table: RunTable, places: NDArray[np.int64], at: slice) -> None:
        """Write the samples at these places of a table to the slice `at`."""
        runs = table.offsets.searchsorted(places, "right") - 1
        self.ids[at] = table.id_base[runs] + places
        if len(self.shards):
            self.shards[at] = table.shard[runs]
            self.pass_numbers[at] = table.pass_number[runs]

    def rows(self, rows: RowReader | None) -> NDArray[np.int64]:
        """Return the ids of the rows that the places stand for, int64 (sample,).

        For all places in one call, since a call for few costs as much.
        """
        return self.ids if rows is None else rows.ids(self.ids, self.shards, self.pass_numbers)


class _PointReader:
    """Reads a shuffle that has a closed form. Keeps no windows."""

    def __init__(self, shuffle: PointShuffle, table: RunTable, rows: RowReader | None) -> None:
        self._shuffle = shuffle
        self._table = table
        self._rows = rows

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See SubOrderReader."""
        found = _Found.empty(len(positions), self._rows is not None)
        found.fill(self._table, self._shuffle.places(positions), slice(None))
        return found.rows(self._rows)


class _WindowReader:
    """Reads a shuffle window by window. Keeps the last window of every canonical node that it has read."""

    def __init__(self, sub_order: SubOrder, rows: RowReader | None) -> None:
        self._sub_order = sub_order
        self._rows = rows
        self._walkers: dict[int, _Walker] = {}

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See SubOrderReader."""
        found = _Found.empty(len(positions), self._rows is not None)
        canonical_nodes, ranks = self._sub_order.grid.locate(positions)
        if self._sub_order.grid.n_canonical_nodes == 1:
            self._walker(0).fill(found, ranks, slice(None))
            return found.rows(self._rows)
        order = np.argsort(canonical_nodes.astype(smallest_type(self._sub_order.grid.n_canonical_nodes)), kind="stable")
        ranks, in_order = ranks[order], canonical_nodes[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=np.int64(-1)))
        ends = np.append(starts[1:], len(in_order))
        for canonical_node, start, end in zip(in_order[starts].tolist(), starts.tolist(), ends.tolist()):
            self._walker(canonical_node).fill(found, ranks[start:end], slice(start, end))
        ids = np.empty(len(positions), np.int64)
        ids[order] = found.rows(self._rows)
        return ids

    def _walker(self, canonical_node: int) -> _Walker:
        walker = self._walkers.get(canonical_node)
        if walker is None:
            walker = self._walkers[canonical_node] = _Walker(self._sub_order.canonical_node(canonical_node))
        return walker


class _Walker:
    """Reads one canonical node: walks where that is cheap, jumps where it is not. Owns the chunk that it stands in."""

    def __init__(self, canonical_node: CanonicalNode) -> None:
        self._canonical_node = canonical_node
        self._chunks: Iterator[NDArray[np.int64]] = iter(())
        self._chunk = np.zeros(0, np.int64)
        self._first = 0
        self._started = False

    def fill(self, found: _Found, ranks: NDArray[np.int64], at: slice) -> None:
        """Write the samples at ranks of this canonical node, int64 (rank,), to the slice `at`."""
        found.fill(self._canonical_node.table, self._places(ranks), at)

    def _places(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(ranks):
            return ranks
        within = ranks - self._first
        if within.view(np.uint64).max() < len(self._chunk):  # a rank before the chunk is huge as an unsigned number
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
        """Move to the chunk that holds `rank`."""
        end = self._first + len(self._chunk)
        if not self._started or rank < self._first or rank >= end + self._canonical_node.shuffle.reach:
            self._chunks = self._canonical_node.shuffle.walk(rank)
            self._chunk, self._first, self._started = next(self._chunks), rank, True
        while rank >= self._first + len(self._chunk):
            self._first += len(self._chunk)
            self._chunk = next(self._chunks)
