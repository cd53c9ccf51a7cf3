"""Cuts a sequence of records into shards. Pure: records in, bytes of whole shards out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streaming.errors import ValueRangeError
from streaming.formats import mds


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A complete shard. `basename` is that of the uncompressed file."""

    basename: str
    n_samples: int
    data: bytes


class ShardBuilder:
    """Collects the records of MDS shards and cuts before a shard would exceed `size_limit` bytes (None: never).

    A record that is larger than the limit gets a shard of its own. No shard is ever empty.
    """

    def __init__(self, config: Mapping[str, Any], size_limit: int | None) -> None:
        self._config = mds.config_text(config)
        self._size_limit = size_limit
        self._n_finished = 0
        self._records: list[bytes] = []
        self._n_bytes = self._empty_bytes

    @property
    def _empty_bytes(self) -> int:
        return mds.header_bytes(0) + len(self._config)

    def add(self, record: bytes) -> FinishedShard | None:
        """Add a record. Returns the shard before it if this record begins a new one.

        Raises ValueRangeError, and adds nothing, if the shard would pass 4 GiB, the limit of its 32-bit offsets.
        """
        room = 4 + len(record)  # an offset and the record
        cut = bool(self._records) and self._size_limit is not None and self._n_bytes + room > self._size_limit
        n_bytes = room + (self._empty_bytes if cut else self._n_bytes)
        if n_bytes > mds.MAX_OFFSET:
            raise ValueRangeError(
                f"with this sample of {len(record)} bytes the shard would have {n_bytes} bytes; offsets reach up to "
                f"{mds.MAX_OFFSET}: set a size_limit below that, or split the sample"
            )
        before = self.finish() if cut else None
        self._records.append(record)
        self._n_bytes = n_bytes
        return before

    def finish(self) -> FinishedShard | None:
        """The shard of the records that were added since the last one; None if there are none."""
        if not self._records:
            return None
        head = mds.shard_head(self._config, [len(record) for record in self._records])
        shard = FinishedShard(
            basename=f"shard.{self._n_finished:05}.mds",
            n_samples=len(self._records),
            data=b"".join((head, *self._records)),
        )
        self._n_finished += 1
        self._records = []
        self._n_bytes = self._empty_bytes
        return shard
