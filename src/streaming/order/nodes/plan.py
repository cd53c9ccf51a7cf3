"""From settings to one worker's batches: the epochs of a run, their batches, and the sample ids that a worker reads.

`Schedule` makes the orders and plans of all epochs, `EpochPlan` says which rank gets which positions, and
`WorkerReader` reads the batches k = worker, worker + W, … of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.batching.exact_merge import composition_of
from streaming.order.batching.table import batching_of
from streaming.order.catalog import Catalog
from streaming.order.epoch import EpochOrder
from streaming.order.nodes.assignment import all_canonical_nodes, canonical_nodes_at, canonical_nodes_of_batches
from streaming.order.nodes.partition import NodeSlots, SlotKeys, node_pieces, node_slots_by_sort, rank_positions
from streaming.order.nodes.shard_uses import ReadsFrom, returning_shards, uses_of_node
from streaming.order.nodes.topology import Topology
from streaming.order.spec import OrderSpec
from streaming.order.weights import StreamWeight, resolve_draws

REMAINDERS: Final = ("pad", "drop", "exact")
_SLOTS_AT_ONCE: Final = 1 << 14
"""Slots that are dealt at once, over many batches: as many as fit the processor's cache."""


class EpochPlan:
    """The batches of an epoch: batch k is positions `start + kG .. start + (k+1)G - 1`, up to `stop`.

    G = batch_size × groups; a group is one rank, or under replication several that get the same samples. `start`:
    samples consumed before; nothing is left if it is the length of the order or more. `remainder`:

    - `"pad"` repeats samples until all ranks have equally many;
    - `"drop"` cuts instead;
    - `"exact"` does neither, so ranks differ by at most one sample (one unit, where units are dealt whole).

    Where streams take turns by units, the unit must be the global batch (`per_stream`) or the batch size
    (`device_per_stream`), and `start` a multiple of it. Where batches are composed exactly, the batch size and `start`
    must be multiples of the unit, and every batch is whole: nothing is repeated, and what fills none is dropped.

    Raises OptionError for arguments that do not fit. Immutable, and shareable between threads.
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
        self.global_batch = batch_size * topology.n_groups
        self._check_unit()
        self._slot = order.slot_samples
        left = max(0, order.n_samples - start)
        if order.composition is None:
            n_slots = _kept(left // self._slot, topology.n_groups, remainder)
        else:
            n_slots = left // self.global_batch * self.global_batch
        self.stop = start + n_slots * self._slot
        self.n_batches = -(-(self.stop - start) // self.global_batch)
        self._keys = SlotKeys.of(order.spec.seed, order.epoch) if order.spec.shuffle else None
        # Whole batches without padding: the slots that a node gets of them have a closed form.
        self._n_regular = max(0, (min(self.stop, order.n_samples) - start) // self.global_batch)

    @property
    def spent_at(self) -> int:
        """Samples of an epoch after which no batch is left, when reading goes on like this: at most its length."""
        fewest = self.order.slot_samples * self.topology.n_groups if self.remainder == "drop" else 1
        fewest = fewest if self.order.composition is None else self.global_batch
        return max(0, self.order.n_samples - fewest + 1)

    @property
    def left_out(self) -> NDArray[np.int64]:
        """Samples of each stream that fill no unit, which this epoch leaves out: int64 (stream,)."""
        return self.order.left_out

    def source(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map padding to the positions that it repeats: `EpochOrder.source`. int64 (position,) -> int64 (position,)."""
        sources: NDArray[np.int64] = self.order.source(positions)
        return sources

    def batch_positions(self, k: int, rank: int) -> NDArray[np.int64]:
        """Return the positions that `rank` gets in batch `k`, int64 (position,). Those from N on are padding."""
        return self.rank_batches(rank, np.array([k], np.int64))[0]

    def rank_batches(self, rank: int, ks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions that `rank` gets in batches `ks` (ascending), batch after batch, and the length of each.

        int64 (batch,) -> int64 (position,), int64 (batch,). Many batches in one call cost little more than one. Raises
        OptionError for a rank or a batch that does not exist.
        """
        if not 0 <= rank < self.topology.n_ranks:
            raise OptionError(f"rank must be 0 or more and below {self.topology.n_ranks}, got {rank}")
        if len(ks) and not 0 <= int(ks[0]) <= int(ks[-1]) < self.n_batches:
            raise OptionError(f"batches {int(ks[0])}..{int(ks[-1])} are not all in 0..{self.n_batches - 1}")
        n_regular = int(np.searchsorted(ks, self._n_regular, "left"))
        blocks = []
        n_slots = self.global_batch // self._slot
        n_at_once = max(1, _SLOTS_AT_ONCE // (n_slots if self.order.deals_units else n_slots // self.topology.n_nodes))
        for first in range(0, n_regular, n_at_once):
            starts = self.start + ks[first : min(first + n_at_once, n_regular)] * self.global_batch
            pieces = node_pieces(self.order, self.topology, self.topology.node_of(rank), starts, n_slots)
            blocks.append(np.concatenate([self._rank_positions(piece, rank) for piece in pieces], axis=1))
        for k in ks[n_regular:].tolist():
            slots = self._slots(k)
            dealt = node_slots_by_sort(self.order, self.topology, self.topology.node_of(rank), slots)
            blocks.append(self._rank_positions(dealt, rank))
        lengths = np.array([block.shape[1] for block in blocks for _ in range(len(block))], np.int64)
        return np.concatenate([np.zeros(0, np.int64), *(block.ravel() for block in blocks)]), lengths

    def rank_samples(self, rank: int) -> int:
        """Return the number of positions that `rank` gets in all batches together."""
        n_full, rest = divmod(self.stop - self.start, self.global_batch)
        return n_full * self.batch_size + (len(self.batch_positions(n_full, rank)) if rest else 0)

    def node_batch(self, k: int, node: int) -> NDArray[np.int64]:
        """Return the positions that all ranks of `node` get in batch `k`, by canonical node, int64 (position,).

        Where batches are composed exactly: by stream, then canonical node.
        """
        slots = self._slots(k)
        if self.order.composition is None:
            slots, _ = node_slots_by_sort(self.order, self.topology, node, slots)
        else:
            pieces = node_pieces(self.order, self.topology, node, slots[0, :1], slots.shape[1])
            slots = np.concatenate([positions for positions, _ in pieces], axis=1)
        positions: NDArray[np.int64] = self._positions(slots)[0]
        return positions

    def first_uses(self, node: int, position: int, limit: int, *, with_spent: bool = True) -> NDArray[np.int64]:
        """Return the shards that `node` needs from `position` on, by first use, each once: int64 (≤ limit,).

        In closed form: the order is approximate, and a shard that is just done may still be listed, at the end. But no
        shard is missing that is needed, except by padding. Without `with_spent`, shards that are almost surely done are
        not listed, and hardly any needed one is missing.
        """
        return uses_of_node(self.order, self._reads_of(node, position), limit, with_spent=with_spent)

    def returning_shards(self, node: int) -> NDArray[np.int64]:
        """Return the shards that `node` uses at the start and, after a pause, again: int64 (shard,), ascending."""
        return returning_shards(self.order, self._reads_of(node, self.start))

    def _slots(self, k: int) -> NDArray[np.int64]:
        """Return the first position of every slot of batch `k`, int64 (1, slot)."""
        first = self.start + k * self.global_batch
        return np.arange(first, min(first + self.global_batch, self.stop), self._slot, dtype=np.int64)[None, :]

    def _rank_positions(self, dealt: NodeSlots, rank: int) -> NDArray[np.int64]:
        """Return what `rank` gets of its node's slots, int64 (batch, position)."""
        slots, sub_orders = dealt
        return self._positions(rank_positions(slots, sub_orders, self.topology, rank, self._keys))

    def _positions(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all positions of slots. int64 (batch, slot) -> int64 (batch, position)."""
        if self._slot == 1:
            return slots
        positions: NDArray[np.int64] = slots[:, :, None] + np.arange(self._slot)
        return positions.reshape(len(slots), slots.shape[1] * self._slot)

    def _reads_of(self, node: int, position: int) -> list[ReadsFrom]:
        """Return which canonical nodes a node reads, and from which positions on."""
        order = self.order
        if self.topology.n_nodes == 1:
            return [ReadsFrom(all_canonical_nodes(order), position)]
        reads = []
        if self._n_regular:
            n_slots = self.global_batch // self._slot
            whole = canonical_nodes_of_batches(order, self.topology, node, self.start, n_slots, self._n_regular)
            reads.append(ReadsFrom(whole, position))
        if self._n_regular < self.n_batches:  # the last batch is cut differently
            last = self.node_batch(self.n_batches - 1, node)
            last = last[last < order.n_samples]
            if len(last):
                reads.append(ReadsFrom(canonical_nodes_at(order, last), max(position, int(last.min()))))
        return reads

    def _check_unit(self) -> None:
        unit, batches = self.order.unit, self.order.spec.batches
        if unit is None:
            return
        if self.order.composition is not None:
            self._check_composition(unit)
            return
        what, present = (
            ("batch size", self.batch_size) if self.order.deals_units else ("global batch", self.global_batch)
        )
        if present != unit:
            raise OptionError(
                f"{batches}: the order was made for units of {unit} samples, but the {what} is "
                f"{present}; make it with unit={present}"
            )
        if self.start % unit and self.start < self.order.n_samples:
            raise OptionError(
                f"{batches}: reading can go on at a multiple of the {what} of {unit} samples only, "
                f"not at sample {self.start}"
            )

    def _check_composition(self, unit: int) -> None:
        order, batches = self.order, self.order.spec.batches
        shown = " : ".join(map(str, order.composition or []))
        if self.batch_size % unit:
            raise OptionError(
                f"{batches}: the order was made for streams in the proportion {shown}, so the batch size must be a "
                f"multiple of {unit}, not {self.batch_size}"
            )
        _check_remainder(order.spec, self.remainder)
        if order.n_samples < self.global_batch and order.draws.any():
            raise OptionError(
                f"{batches}: no whole batch can be made. The epoch has {order.n_samples:,} samples in the proportion "
                f"{shown}, and {self.topology.n_groups} x {self.batch_size} are needed; lower the batch size, or raise "
                "the weights or the epoch_size"
            )
        if self.start % unit and self.start < order.n_samples:
            raise OptionError(
                f"{batches}: reading can go on at a multiple of {unit} samples only (the proportion {shown}), "
                f"not at sample {self.start}"
            )


def _check_remainder(spec: OrderSpec, remainder: str) -> None:
    """Raise OptionError if a remainder contradicts batches of an exact composition."""
    if remainder == "exact":
        raise OptionError(
            f"{spec.batches} drops what fills no whole batch, which remainder='exact' forbids; leave one of them out"
        )


def _kept(left: int, n_groups: int, remainder: str) -> int:
    """Return how many of the slots that are left the ranks get."""
    if remainder == "exact":
        return left
    return (-(-left // n_groups) if remainder == "pad" else left // n_groups) * n_groups


_SAMPLES_PER_CANONICAL_NODE: Final = 128
_FEWEST_PER_CALL: Final = 1 << 13
_MOST_PER_CALL: Final = 1 << 17


class WorkerReader:
    """Reads one worker's batches of an epoch in order. Owns the windows of the order that it stands in. For one thread.

    It plans ahead: at first just what is asked for, then up to 128 samples per canonical node of its node, at least
    8,192. To plan batch by batch would cost ten times as much.
    """

    def __init__(self, plan: EpochPlan, rank: int, worker: int, n_workers: int) -> None:
        if not 0 <= rank < plan.topology.n_ranks:
            raise OptionError(f"rank must be 0 or more and below {plan.topology.n_ranks}, got {rank}")
        if n_workers < 1 or not 0 <= worker < n_workers:
            raise OptionError(f"worker must be 0 or more and below n_workers, got {worker} of {n_workers}")
        self._plan = plan
        self._rank = rank
        self._n_workers = n_workers
        self._reader = plan.order.reader()
        n_canonical_nodes = sum(sub_order.n_canonical_nodes for sub_order in plan.order.sub_orders)
        useful = _SAMPLES_PER_CANONICAL_NODE * -(-n_canonical_nodes // plan.topology.n_nodes)
        self._most_per_call = min(max(_FEWEST_PER_CALL, useful), _MOST_PER_CALL)
        self._per_call = 1
        self._next_planned = worker  # the next batch to plan
        self._next_handed = worker  # the next batch to hand out
        self._ids = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)

    @property
    def position(self) -> int:
        """A lower bound on the positions that `next_ids` has still to return."""
        return min(self._plan.start + self._next_handed * self._plan.global_batch, self._plan.stop)

    def next_ids(self, min_samples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids of the next batches, batch after batch, and the length of each.

        int64 (sample,), int64 (batch,). The batches are whole, at least one, with `min_samples` in all or a little
        more. There are fewer only at the end of the epoch; after it the arrays are empty.
        """
        wanted = max(1, min_samples)
        while len(self._ids) < wanted and self._next_planned < self._plan.n_batches:
            self._plan_more(wanted - len(self._ids))
        n_batches = min(int(np.searchsorted(np.cumsum(self._lengths), wanted, "left")) + 1, len(self._lengths))
        lengths, self._lengths = self._lengths[:n_batches], self._lengths[n_batches:]
        n_ids = int(lengths.sum())
        ids, self._ids = self._ids[:n_ids], self._ids[n_ids:]
        self._next_handed += n_batches * self._n_workers
        return ids, lengths

    def _plan_more(self, wanted: int) -> None:
        n_samples = max(wanted, self._per_call)
        self._per_call = min(self._most_per_call, 4 * n_samples)
        n_batches = -(-n_samples // self._plan.batch_size)
        stop = min(self._next_planned + n_batches * self._n_workers, self._plan.n_batches)
        ks = np.arange(self._next_planned, stop, self._n_workers, dtype=np.int64)
        self._next_planned += n_batches * self._n_workers
        positions, lengths = self._plan.rank_batches(self._rank, ks)
        ids = self._reader.ids(self._plan.source(positions))
        # Under `exact` a rank may get no sample of the last batch. Then it has no such batch.
        self._lengths = np.concatenate([self._lengths, lengths[lengths > 0]])
        self._ids = np.concatenate([self._ids, ids])


class Schedule:
    """The epochs of a dataset. Immutable but for the orders that it keeps; shareable between threads.

    `weights`: one per stream. `epoch_size`: samples in an epoch, None for what the weights say. `batch_size`: needed
    where a batch comes from one stream, since the order then depends on it. Raises OptionError.
    """

    def __init__(
        self,
        spec: OrderSpec,
        catalog: Catalog,
        *,
        weights: Sequence[StreamWeight],
        epoch_size: int | None,
        remainder: str,
        batch_size: int | None,
    ) -> None:
        if remainder not in REMAINDERS:
            raise OptionError(f"remainder must be one of {', '.join(map(repr, REMAINDERS))}; got {remainder!r}")
        self._batching = batching_of(spec.batching_method, spec.batch_composition)
        if self._batching.takes_units and batch_size is None:
            raise OptionError(f"{spec.batches} orders whole batches: give the dataset its batch_size")
        self.spec = spec
        self.catalog = catalog
        self.remainder = remainder
        self.draws: NDArray[np.int64] = resolve_draws(catalog, weights, epoch_size, spec.seed)
        if spec.batch_composition == "exact" and batch_size is not None:
            _check_remainder(spec, remainder)
            composition_of(self.draws.tolist(), batch_size)  # raises now, and not at the first epoch
        self._batch_size = batch_size
        self._first: dict[int | None, EpochOrder] = {}

    def order(self, epoch: int, topology: Topology) -> EpochOrder:
        """The order of an epoch; only where a batch comes from one stream does it depend on the topology."""
        unit = self._unit(topology)
        if epoch:
            return EpochOrder(self.spec, self.catalog, epoch, self.draws, unit)
        order = self._first.get(unit)
        if order is None:
            order = self._first[unit] = EpochOrder(self.spec, self.catalog, 0, self.draws, unit)
        return order

    def plan(self, epoch: int, topology: Topology, batch_size: int, start: int = 0) -> EpochPlan:
        """Who gets what in an epoch of which `start` samples are spent."""
        return EpochPlan(self.order(epoch, topology), topology, batch_size, start=start, remainder=self.remainder)

    def _unit(self, topology: Topology) -> int | None:
        if self._batch_size is None or not self._batching.takes_units:
            return None
        return self._batch_size * (topology.n_groups if self._batching.unit_spans_ranks else 1)
