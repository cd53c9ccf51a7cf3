"""Where the records of a shard lie, without the shard: from its offset table alone, or from a part of that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final, TypeAlias

from streaming.errors import ShardDamagedError
from streaming.fetch.wire import Span
from streaming.fork_safety import ForkSafeLock
from streaming.formats.layout import layout_of
from streaming.read.shards.files import ShardFiles

MAX_TABLE_BYTES: Final = 256 << 10
"""A table up to this size is fetched whole, and kept beside the shard's location; of a larger one what is asked for."""

_MAX_KEPT_BYTES: Final = 32 << 20  # in memory

Bounds: TypeAlias = dict[int, tuple[int, int]]
"""Where rows of one shard lie in its file: row → first byte and the one after the last."""


class OffsetTables:
    """Offset tables of shards that are not on disk: the latest in memory, all that were ever fetched beside them.

    Safe between threads. Every table is checked before it is used. Raises ShardDamagedError, naming the shard.
    """

    def __init__(self, files: ShardFiles) -> None:
        self._files = files
        self._lock = ForkSafeLock()
        self._tables: dict[int, memoryview] = {}  # offsets, uint32, by shard; the oldest first
        self._n_bytes = 0

    def find(self, shard: int, rows: Sequence[int]) -> Bounds | None:
        """Where these rows lie, without asking anybody; None if that is not known on this machine."""
        table = self._tables.get(shard)
        if table is None:
            table = self._on_disk(shard)
        return None if table is None else {row: (table[row], table[row + 1]) for row in rows}

    def spans(self, shard: int, rows: Sequence[int]) -> list[Span]:
        """What must be fetched to tell where these rows lie: the whole table, or one span for each row."""
        index, local = self._files.index(shard)
        layout, n_samples = layout_of(index.schema(local).format), int(index.samples[local])
        need, n_header = self._files.need(shard), layout.header_bytes(n_samples)
        if n_header <= min(MAX_TABLE_BYTES, need.n_bytes):
            return [Span(need, 0, n_header, keep=True)]
        return [Span(need, *layout.offset_bytes(row)) for row in rows]

    def read(self, shard: int, spans: Sequence[Span], parts: Sequence[memoryview], rows: Sequence[int]) -> Bounds:
        """Where these rows lie, from what `spans` fetched."""
        index, local = self._files.index(shard)
        layout, n_samples = layout_of(index.schema(local).format), int(index.samples[local])
        n_bytes = int(index.raw_bytes[local])
        try:
            if spans[0].keep:
                # A copy, since the part holds on to all that came with it.
                table = layout.record_offsets(bytes(parts[0]), n_samples, n_bytes).data
                self._keep(shard, table)
                return {row: (table[row], table[row + 1]) for row in rows}
            return {row: layout.record_bounds(part, row, n_samples, n_bytes) for row, part in zip(rows, parts)}
        except ShardDamagedError as error:
            _delete(self._files.table_path(shard))
            raise ShardDamagedError(f"{self._files.name(shard)}: {error}") from error

    def _on_disk(self, shard: int) -> memoryview | None:
        path = self._files.table_path(shard)
        try:
            with open(path, "rb") as file:
                head = file.read(MAX_TABLE_BYTES + 1)
        except OSError:
            return None
        index, local = self._files.index(shard)
        layout, n_samples = layout_of(index.schema(local).format), int(index.samples[local])
        try:
            if len(head) != layout.header_bytes(n_samples):
                raise ShardDamagedError("a table of another size")
            table = layout.record_offsets(head, n_samples, int(index.raw_bytes[local])).data
        except ShardDamagedError:
            _delete(path)
            return None
        self._keep(shard, table)
        return table

    def _keep(self, shard: int, table: memoryview) -> None:
        with self._lock:
            old = self._tables.pop(shard, None)
            self._n_bytes += table.nbytes - (0 if old is None else old.nbytes)
            self._tables[shard] = table
            while self._n_bytes > _MAX_KEPT_BYTES and self._tables:
                self._n_bytes -= self._tables.pop(next(iter(self._tables))).nbytes


def _delete(table_path: str) -> None:
    """A table that was fetched and is worth nothing."""
    with contextlib.suppress(OSError):
        os.unlink(table_path)
