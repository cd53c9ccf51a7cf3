"""Samples of shards that are not on disk, by range: first where their records lie, then the records.

Each of the two takes one request to the fetcher, whatever the number of shards. So the first sample of an absent shard
takes two requests, and a sample of one whose offsets are known takes one. Records live as long as their reader needs
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from streaming.errors import FormatError, ShardDamagedError
from streaming.fetch.client import FetchClient, RangesTicket
from streaming.fetch.decide.ranges import RangeRules
from streaming.fetch.wire import RangeAsk, Reason, Span
from streaming.read.shards.files import ShardFiles
from streaming.read.shards.offsets import Bounds, OffsetTables
from streaming.read.shards.pool import Decode, OpenShard, Sample, ShardPool, name_sample
from streaming.read.telemetry.counters import RANGED

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
        """Add the record of a row."""
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
            # No hash covers a range. The whole shard is checked when it comes, so it decides what is right.
            name_sample(error, self._name, row)
            return self._open_whole().sample(row)


PartialShards: TypeAlias = dict[int, PartialShard]
"""The samples that have come by range, by shard."""


class RangeReader:
    """Reads single samples of shards that are not on disk. Safe between threads."""

    def __init__(self, client: FetchClient, files: ShardFiles, pool: ShardPool) -> None:
        self.client = client
        self.files = files
        self.pool = pool
        self.tables = OffsetTables(files)

    @property
    def rules(self) -> RangeRules:
        """The rules by which the fetcher decides on ranges."""
        return self.client.rules

    def begin(self, rows: Rows, ask: RangeAsk, *, after: Collection[int] = frozenset()) -> RangeRead:
        """Begin to fetch these samples.

        All shards must be `by_parts`, and the rows of each be distinct. `after`: shards whose offset tables come with
        reads that will be hastened before this one. Raises ClosedError.
        """
        self.pool.check_open()
        return RangeRead(self, rows, ask, after)

    def read(self, rows: Rows, ask: RangeAsk) -> PartialShards:
        """Wait for those of these samples that are granted. Raises what the store answers."""
        return self.begin(rows, ask).arrive()


class RangeRead:
    """Samples under way, for one thread. One that is abandoned costs no more than what it has begun."""

    def __init__(self, reader: RangeReader, rows: Rows, ask: RangeAsk, after: Collection[int]) -> None:
        self._reader, self._rows, self._ask = reader, rows, ask
        self._rules = reader.rules
        self.is_late = False
        """Whether the samples were granted within the budget for late shards; known when they have come."""
        # The same moment for both requests, so that no other reader's offsets come before our records.
        self._due_at_s = time.monotonic() + ask.due_s
        self._bounds: dict[int, Bounds] = {}
        self._asked: list[tuple[int, list[Span]]] = []  # shards whose offsets are under way
        self._after = [shard for shard in rows if shard in after and self._spans(shard)[0].keep]
        self._offsets = self._ask_offsets(shard for shard in rows if shard not in self._after)
        self._requested: list[tuple[int, int]] = []  # shard and row of every record that is under way
        self._records: RangesTicket | None = None
        self._is_hastened = False
        if not self._asked and not self._after:
            self.hasten()

    @property
    def tables(self) -> set[int]:
        """Shards whose whole offset table is under way."""
        return {shard for shard, spans in self._asked if spans[0].keep}

    def hasten(self, *, is_patient: bool = True) -> None:
        """Wait until it is known where the records lie, and begin to fetch them.

        With `is_patient=False` nothing is waited for: if the offsets have not come, nothing is done.
        """
        self._reader.pool.check_open()
        if self._is_hastened or not (is_patient or self._knows_offsets()):
            return
        self._is_hastened = True
        self._take_offsets(self._offsets)
        if self._after:
            self._take_offsets(self._ask_offsets(self._after))
        spans: list[Span] = []
        n_bytes = 0
        for shard, bounds in self._bounds.items():
            file = self._reader.files.request(shard)
            for row in self._rows[shard]:
                begin, end = bounds[row]
                if end - begin > self._rules.record_bytes:
                    continue
                n_bytes += end - begin
                if begin < end and (not spans or n_bytes <= self._rules.together_bytes):
                    self._requested.append((shard, row))
                    spans.append(Span(file, begin, end))
        self._records = self._begin(spans)

    def arrive(self) -> PartialShards:
        """Wait for the records, and return those that were granted. Raises what the store answers."""
        self.hasten()
        partials: PartialShards = {}
        if self._records is None:
            return partials
        records = self._reader.client.end_ranges(self._records)
        self.is_late = self._records.is_late
        for (shard, row), record in zip(self._requested, records):
            if record is None:
                continue
            held = partials.get(shard)
            if held is None:
                held = partials[shard] = self._partial(shard)
            held.put(row, record)
        self._reader.files.counters.add({RANGED[self._ask.reason]: sum(map(len, partials.values()))})
        return partials

    def _partial(self, shard: int) -> PartialShard:
        reader = self._reader
        return PartialShard(reader.files.name(shard), reader.pool.decoder(shard), partial(reader.pool.open, shard))

    def _begin(self, spans: Sequence[Span]) -> RangesTicket | None:
        if not spans:
            return None
        ask = msgspec.structs.replace(self._ask, due_s=self._due_at_s - time.monotonic())
        return self._reader.client.begin_ranges(spans, ask)

    def _spans(self, shard: int) -> list[Span]:
        return self._reader.tables.spans(shard, self._rows[shard], whole_bytes=self._rules.table_bytes)

    def _ask_offsets(self, shards: Iterable[int]) -> RangesTicket | None:
        """Note the offsets of these shards that are known, and begin to fetch the others."""
        self._asked = []
        for shard in shards:
            found = self._reader.tables.find(shard, self._rows[shard])
            if found is None:
                self._asked.append((shard, self._spans(shard)))
            else:
                self._bounds[shard] = found
        return self._begin([span for _, spans in self._asked for span in spans])

    def _knows_offsets(self) -> bool:
        reader = self._reader
        are_here = all(reader.tables.find(shard, self._rows[shard]) is not None for shard in self._after)
        return are_here and (self._offsets is None or reader.client.poll_ranges(self._offsets))

    def _take_offsets(self, ticket: RangesTicket | None) -> None:
        if ticket is None:
            return
        parts = iter(self._reader.client.end_ranges(ticket))
        for shard, spans in self._asked:
            mine = [next(parts) for _ in spans]
            granted = [part for part in mine if part is not None]
            if len(granted) < len(mine):
                continue
            try:
                self._bounds[shard] = self._reader.tables.read(shard, spans, granted, self._rows[shard])
            except ShardDamagedError:
                # A reader that waits for the shard instead gets it checked as a whole, or the error that says what is
                # wrong. Without room there is no such reader.
                if self._ask.reason is Reason.NO_ROOM:
                    raise
