"""Where the records of an absent shard lie: from its offset table alone, or from a part of the table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final, TypeAlias

from streaming.errors import ShardDamagedError
from streaming.fetch.wire import Span
from streaming.fork_safety import ForkSafeLock
from streaming.read.shards.files import ShardFiles
from streaming.regular_file import read_regular

_MAX_IN_MEMORY_BYTES: Final = 32 << 20

Bounds: TypeAlias = dict[int, tuple[int, int]]
"""Where records of one shard lie in its file: row → its first byte, and the byte after its last."""


class OffsetTables:
    """Offset tables of shards that are not on disk.

    The latest are in memory; all that were ever fetched are kept in the cache, each where its shard will be. Every
    table is checked before it is used. Safe between threads. Raises ShardDamagedError, naming the shard.
    """

    def __init__(self, files: ShardFiles) -> None:
        self._files = files
        self._lock = ForkSafeLock()
        self._tables: dict[int, memoryview] = {}  # offsets, uint32, by shard; the oldest first
        self._n_bytes = 0

    def find(self, shard: int, rows: Sequence[int]) -> Bounds | None:
        """Where these rows lie; None if that is not known on this machine. Sends no message."""
        table = self._tables.get(shard)
        if table is None:
            table = self._on_disk(shard)
        return None if table is None else {row: (table[row], table[row + 1]) for row in rows}

    def spans(self, shard: int, rows: Sequence[int], *, whole_bytes: int) -> list[Span]:
        """The bytes that say where these rows lie: the table if it has at most `whole_bytes`, else a span a row."""
        layout, n_samples = self._files.layout(shard)
        file, n_header = self._files.request(shard), layout.header_bytes(n_samples)
        if n_header <= min(whole_bytes, file.n_bytes):
            return [Span(file, 0, n_header, keep=True)]
        return [Span(file, *layout.offset_bytes(row)) for row in rows]

    def read(self, shard: int, spans: Sequence[Span], parts: Sequence[memoryview], rows: Sequence[int]) -> Bounds:
        """Where these rows lie, from the bytes of `spans`."""
        layout, n_samples = self._files.layout(shard)
        n_bytes = spans[0].file.n_bytes
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
        layout, n_samples = self._files.layout(shard)
        n_header = layout.header_bytes(n_samples)
        try:
            head = read_regular(path, n_header + 1)
        except OSError:
            return None
        index, local = self._files.index(shard)
        try:
            if len(head) != n_header:
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
            while self._n_bytes > _MAX_IN_MEMORY_BYTES and self._tables:
                self._n_bytes -= self._tables.pop(next(iter(self._tables))).nbytes


def _delete(table_path: str) -> None:
    """Delete a table that turned out to be damaged."""
    with contextlib.suppress(OSError):
        os.unlink(table_path)
