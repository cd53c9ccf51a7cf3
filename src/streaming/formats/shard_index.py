"""The shards of a dataset, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.formats.schema import SEPARATORS, Schema
from streaming.formats.shard_tables import Files, Repeated

VERSION: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """All shards of a dataset, in order. The methods take a shard number.

    `samples` is int64 (shard,): the number of samples in each shard. `raw_meta` and `zip_meta` are the offset files of
    formats that keep data and offsets apart, None if no shard has such a format.
    """

    samples: NDArray[np.int64]
    raw: Files
    zipped: Files
    raw_meta: Files | None
    zip_meta: Files | None
    schema_table: Repeated[Schema]
    compression_table: Repeated[str | None]
    size_limit_table: Repeated[int | float | str | None]
    hash_table: Repeated[tuple[str, ...]]

    @property
    def n_shards(self) -> int:
        """Number of shards, those without samples included."""
        return len(self.samples)

    @property
    def n_samples(self) -> int:
        """Number of samples in all shards."""
        return int(self.samples.sum())

    @property
    def is_compressed(self) -> bool:
        """Whether any shard is compressed."""
        return bool((self.zipped.n_bytes >= 0).any())

    @property
    def raw_bytes(self) -> NDArray[np.int64]:
        """int64 (shard,): size of the uncompressed data file."""
        return self.raw.n_bytes

    @property
    def zip_bytes(self) -> NDArray[np.int64]:
        """int64 (shard,): size of the compressed data file, -1 if the shard is not compressed."""
        return self.zipped.n_bytes

    @property
    def schema_of(self) -> NDArray[np.int32]:
        """int32 (shard,) -> index into `schemas`."""
        return self.schema_table.which

    @property
    def schemas(self) -> tuple[Schema, ...]:
        """The distinct schemas."""
        return self.schema_table.values

    def schema(self, i: int) -> Schema:
        """Format and columns of shard i."""
        return self.schema_table[i]

    def compression(self, i: int) -> str | None:
        """Algorithm with level, as the writer's argument gave it; None if shard i is not compressed."""
        return self.compression_table[i]

    def raw_name(self, i: int) -> str:
        """Basename of the uncompressed data file of shard i."""
        return self.raw.names[i]

    def zip_name(self, i: int) -> str | None:
        """Basename of the compressed data file, None if shard i is not compressed."""
        return self.zipped.name(i)

    def raw_hashes(self, i: int) -> dict[str, str]:
        """Hex digests of the uncompressed data file, by algorithm."""
        return self.raw.hashes(i)

    def zip_hashes(self, i: int) -> dict[str, str]:
        """Hex digests of the compressed data file, by algorithm."""
        return self.zipped.hashes(i)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardIndex):
            return NotImplemented
        return np.array_equal(self.samples, other.samples) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__ if name != "samples"
        )

    __hash__ = None  # type: ignore[assignment]

    def entry(self, i: int) -> dict[str, Any]:
        """The object that stands for shard i in `index.json`."""
        schema = self.schema(i)
        shard: dict[str, Any] = {
            "compression": self.compression(i),
            "format": schema.format,
            "hashes": list(self.hash_table[i]),
            "raw_data": _file_entry(self.raw, i),
            "samples": int(self.samples[i]),
            "size_limit": self.size_limit_table[i],
            "version": VERSION,
            "zip_data": _file_entry(self.zipped, i),
        }
        if schema.format == "mds":
            shard["column_names"] = list(schema.column_names)
            shard["column_encodings"] = list(schema.column_encodings)
            shard["column_sizes"] = list(schema.column_sizes)
            return shard
        shard["newline"] = schema.newline
        shard["raw_meta"] = self.raw_meta and _file_entry(self.raw_meta, i)
        shard["zip_meta"] = self.zip_meta and _file_entry(self.zip_meta, i)
        if schema.format == "json":
            shard["columns"] = dict(zip(schema.column_names, schema.column_encodings, strict=True))
            return shard
        shard["column_names"] = list(schema.column_names)
        shard["column_encodings"] = list(schema.column_encodings)
        if schema.format not in SEPARATORS:
            shard["separator"] = schema.separator
        return shard


def file_entry(basename: str, n_bytes: int, hashes: Mapping[str, str]) -> dict[str, Any]:
    """The object that stands for one file in `index.json`."""
    return {"basename": basename, "bytes": n_bytes, "hashes": dict(hashes)}


def _file_entry(files: Files, i: int) -> dict[str, Any] | None:
    name = files.name(i)
    return None if name is None else file_entry(name, int(files.n_bytes[i]), files.hashes(i))
