"""Samples of shards that are not on disk, by ranges: first where their records lie, then the records.

Each takes one request, whatever the number of shards, so the first sample of a cold shard takes two, and one of a shard
whose offsets are known takes one. What has come lives as long as its reader needs it, and no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from streaming.errors import FormatError, ShardDamagedError
from streaming.fetch.client import FetchClient, RangesTicket
from streaming.fetch.wire import RangeAsk, Reason, Span
from streaming.read.shards.files import ShardFiles
from streaming.read.shards.offsets import Bounds, OffsetTables
from streaming.read.shards.pool import Decode, OpenShard, Sample, ShardPool, name_sample
from streaming.read.telemetry.counters import RANGED

MAX_STAGED_BYTES: Final = 64 << 20
"""Of records that come together; a single larger one still comes."""

Rows: TypeAlias = Mapping[int, Sequence[int]]
"""Samples: shard → rows, in the order in which they are needed."""


class PartialShard:
    """Some samples of a shard that is not on disk."""

    __slots__ = ("_decode", "_name", "_open_whole", "_records")

    def __init__(self, name: str, decode: Decode, open_whole: Callable[[], OpenShard]) -> None:
        self._name = name
        self._decode = decode
        self._open_whole = open_whole
        self._records: dict[int, memoryview | bytes] = {}

    def put(self, row: int, record: memoryview | bytes) -> None:
        """The record of this row has come."""
        self._records[row] = record

    def __contains__(self, row: int) -> bool:
        return row in self._records

    def __len__(self) -> int:
        return len(self._records)

    def sample(self, row: int) -> Sample:
        """The decoded sample at this row, which must be here."""
        try:
            return self._decode(self._records[row])
        except FormatError as error:
            # No hash covers a range. The shard as a whole is checked when it comes, so it decides what is right.
            name_sample(error, self._name, row)
            return self._open_whole().sample(row)


PartialShards: TypeAlias = dict[int, PartialShard]
"""What has come, by shard."""


class RangeReader:
    """Reads single samples of shards that are not on disk. Safe between threads."""

    def __init__(self, client: FetchClient, files: ShardFiles, pool: ShardPool) -> None:
        self.client = client
        self.files = files
        self.pool = pool
        self.tables = OffsetTables(files)

    def begin(self, rows: Rows, ask: RangeAsk, *, after: Collection[int] = frozenset()) -> RangeRead:
        """Have these samples come.

        All shards must be `by_parts`, and the rows of each be distinct. `after`: shards whose tables are on their way
        to reads that will be hastened before this one.
        """
        return RangeRead(self, rows, ask, after)

    def read(self, rows: Rows, ask: RangeAsk) -> PartialShards:
        """Wait for those of these samples that are granted. Raises what the store answers."""
        return self.begin(rows, ask).arrive()


class RangeRead:
    """Samples on their way, of one reader and for one thread. Abandoned, it costs nothing but what was started."""

    def __init__(self, source: RangeReader, rows: Rows, ask: RangeAsk, after: Collection[int]) -> None:
        self._source, self._rows, self._ask = source, rows, ask
        self.is_late = False
        """Whether the samples were granted within the budget for late shards; known when they have come."""
        # The same for both requests, so that no other reader's offsets come before our records.
        self._due_at_s = time.monotonic() + ask.due_s
        self._bounds: dict[int, Bounds] = {}
        self._asked: list[tuple[int, list[Span]]] = []  # shards whose offsets are on their way
        self._after = [shard for shard in rows if shard in after and self._spans(shard)[0].keep]
        self._offsets = self._ask_offsets(shard for shard in rows if shard not in self._after)
        self._places: list[tuple[int, int]] = []  # shard and row of every record that is on its way
        self._records: RangesTicket | None = None
        self._is_hastened = False
        if not self._asked and not self._after:
            self.hasten()

    @property
    def tables(self) -> set[int]:
        """Shards whose whole table is on its way."""
        return {shard for shard, spans in self._asked if spans[0].keep}

    def hasten(self, *, is_patient: bool = True) -> None:
        """Wait until it is known where the records lie, and have them come. Not `is_patient`: only if it is known."""
        if self._is_hastened or not (is_patient or self._knows_offsets()):
            return
        self._is_hastened = True
        self._take_offsets(self._offsets)
        if self._after:
            self._take_offsets(self._ask_offsets(self._after))
        spans: list[Span] = []
        n_bytes = 0
        for shard, bounds in self._bounds.items():
            need = self._source.files.need(shard)
            for row in self._rows[shard]:
                begin, end = bounds[row]
                n_bytes += end - begin
                if begin < end and (not spans or n_bytes <= MAX_STAGED_BYTES):
                    self._places.append((shard, row))
                    spans.append(Span(need, begin, end))
        self._records = self._begin(spans)

    def arrive(self) -> PartialShards:
        """Wait for the records: those that were granted, by shard. Raises what the store answers."""
        self.hasten()
        partials: PartialShards = {}
        if self._records is None:
            return partials
        records = self._source.client.end_ranges(self._records)
        self.is_late = self._records.is_late
        for (shard, row), record in zip(self._places, records):
            if record is None:
                continue
            held = partials.get(shard)
            if held is None:
                held = partials[shard] = self._partials(shard)
            held.put(row, record)
        self._source.files.counters.add({RANGED[self._ask.reason]: sum(map(len, partials.values()))})
        return partials

    def _partials(self, shard: int) -> PartialShard:
        source = self._source
        return PartialShard(source.files.name(shard), source.pool.decoder(shard), partial(source.pool.open, shard))

    def _begin(self, spans: Sequence[Span]) -> RangesTicket | None:
        if not spans:
            return None
        ask = msgspec.structs.replace(self._ask, due_s=self._due_at_s - time.monotonic())
        return self._source.client.begin_ranges(spans, ask)

    def _spans(self, shard: int) -> list[Span]:
        return self._source.tables.spans(shard, self._rows[shard])

    def _ask_offsets(self, shards: Iterable[int]) -> RangesTicket | None:
        """Note what is known of these shards, and have the offsets of the others come."""
        self._asked = []
        for shard in shards:
            found = self._source.tables.find(shard, self._rows[shard])
            if found is None:
                self._asked.append((shard, self._spans(shard)))
            else:
                self._bounds[shard] = found
        return self._begin([span for _, spans in self._asked for span in spans])

    def _knows_offsets(self) -> bool:
        source = self._source
        are_here = all(source.tables.find(shard, self._rows[shard]) is not None for shard in self._after)
        return are_here and (self._offsets is None or source.client.poll_ranges(self._offsets))

    def _take_offsets(self, ticket: RangesTicket | None) -> None:
        if ticket is None:
            return
        parts = iter(self._source.client.end_ranges(ticket))
        for shard, spans in self._asked:
            mine = [next(parts) for _ in spans]
            granted = [part for part in mine if part is not None]
            if len(granted) < len(mine):
                continue
            try:
                self._bounds[shard] = self._source.tables.read(shard, spans, granted, self._rows[shard])
            except ShardDamagedError:
                # Whoever waits for the shard instead gets it checked as a whole, or the error that says what is wrong.
                if self._ask.reason is Reason.NO_ROOM:
                    raise
