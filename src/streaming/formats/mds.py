"""The MDS shard: the place of its samples, and the meaning of their bytes.

    u32 n | u32 offsets[n + 1] | config, JSON | n records

A record is a head, one u32 length per variable-size column, and the values of all columns without padding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streaming.errors import (
    ColumnMissingError,
    ColumnSizeError,
    FormatError,
    OptionError,
    ShardDamagedError,
    StreamingError,
    UnsafeTypeError,
    ValueRangeError,
    ValueTypeError,
)
from streaming.formats.fields import table
from streaming.formats.fields.codec import Stored
from streaming.formats.schema import Schema, mds_schema

Decoder: TypeAlias = Callable[[Stored], dict[str, Any]]
Encoder: TypeAlias = Callable[[Mapping[str, Any]], bytes]

MAX_OFFSET: Final = 2**32 - 1


# --- the place of samples


def header_bytes(n_samples: int) -> int:
    """The number of bytes at the start of a shard that hold the sample count and the offsets."""
    return 4 + 4 * (n_samples + 1)


def record_offsets(head: bytes | memoryview, n_samples: int, n_bytes: int) -> NDArray[np.uint32]:
    """The offsets at which the samples of a shard begin, and after them the offset at which the last one ends.

    uint32 (n_samples + 1,): a view of `head`, which the array keeps alive (a copy on big-endian machines). `head` is
    the shard, or at least its first `header_bytes(n_samples)` bytes; `n_samples` is the number in the index, and
    `n_bytes` the size of the whole file. Raises ShardDamagedError.
    """
    needed = header_bytes(n_samples)
    if len(head) < needed:
        raise ShardDamagedError(f"the shard is cut: its offsets take {needed} bytes, {len(head)} are there")
    n_found = int.from_bytes(head[:4], "little")
    if n_found != n_samples:
        raise ShardDamagedError(f"the shard says that it holds {n_found} samples, the index says {n_samples}")
    offsets = np.frombuffer(head, "<u4", n_samples + 1, 4).astype(np.uint32, copy=False)
    if offsets[0] < needed:
        raise ShardDamagedError(f"the first sample begins at {offsets[0]}, inside the {needed} bytes of offsets")
    if offsets[-1] != n_bytes:
        raise ShardDamagedError(f"the last sample ends at {offsets[-1]}, the file at {n_bytes}")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        i = int(falls[0])
        raise ShardDamagedError(f"sample {i} ends at {offsets[i + 1]}, before its begin at {offsets[i]}")
    return offsets


def offset_bytes(row: int) -> tuple[int, int]:
    """The bytes of a shard that hold the two offsets of sample `row`: the first one, and the one after the last."""
    return 4 + 4 * row, 12 + 4 * row


def record_bounds(offsets: bytes | memoryview, row: int, n_samples: int, n_bytes: int) -> tuple[int, int]:
    """The offsets at which sample `row` begins and ends, from the bytes of `offset_bytes(row)` alone.

    `n_samples` and `n_bytes` as for `record_offsets`. Raises ShardDamagedError for damage that two offsets show.
    """
    begin, end = struct.unpack("<2I", offsets)
    if not header_bytes(n_samples) <= begin <= end <= n_bytes:
        raise ShardDamagedError(
            f"sample {row} lies at {begin} to {end}, outside the records of a file of {n_bytes} bytes"
        )
    return begin, end


# --- reading a sample


def mds_decoder(
    schema: Schema,
    *,
    columns: Collection[str] | None = None,
    writable: bool = True,
    allow_unsafe_types: bool = False,
) -> Decoder:
    """Make a function from the bytes of a record to a sample, with the columns in stored order.

    `columns` selects some. With `writable=False` arrays may be views of the given bytes and must not be written to.
    Raises UnsafeTypeError before anything is decoded, OptionError for a column that does not exist, FormatError for
    an encoding that does not. The function raises ShardDamagedError for a record whose lengths do not add up, and
    ValueDecodeError for a value that its encoding does not allow.
    """
    wanted = set(schema.column_names if columns is None else columns)
    unknown = sorted(wanted.difference(schema.column_names))
    if unknown:
        raise OptionError(
            f"there is no column {unknown[0]!r}; the shard has {', '.join(map(repr, schema.column_names))}"
        )
    _refuse_unsafe(schema, wanted, allow_unsafe_types)
    steps = [
        (name, size, _reader(name, encoding, size, writable) if name in wanted else None)
        for name, encoding, size in zip(schema.column_names, schema.column_encodings, schema.column_sizes)
    ]
    n_fixed = sum(size for _, size, _ in steps if size is not None)
    if all(size is not None for _, size, _ in steps):
        return _fixed_decoder(steps, n_fixed)
    return _variable_decoder(steps, n_fixed)


_Step: TypeAlias = tuple[str, int | None, Callable[[Stored], Any] | None]


def _refuse_unsafe(schema: Schema, wanted: Collection[str], allow_unsafe_types: bool) -> None:
    for name, encoding in zip(schema.column_names, schema.column_encodings):
        if encoding in table.UNSAFE and name in wanted and not allow_unsafe_types:
            raise UnsafeTypeError(
                f"column {name!r} has the encoding {encoding!r}, which may run any code when it is read; "
                "if you trust whoever wrote this dataset, pass allow_unsafe_types=True"
            )


def _reader(name: str, encoding: str, size: int | None, writable: bool) -> Callable[[Stored], Any]:
    try:
        codec = table.find(encoding)
    except StreamingError as error:
        raise FormatError(f"column {name!r} cannot be decoded: {error}") from error
    if codec.size != size:
        raise FormatError(f"column {name!r} ({encoding}) has size {size}, must be {codec.size}")
    return codec.decode if writable or codec.view is None else codec.view


def _fixed_decoder(steps: list[_Step], n_fixed: int) -> Decoder:
    """The decoder for schemas without a variable-size column: every value has a fixed place."""
    places = []
    begin = 0
    for name, size, read in steps:
        end = begin + (size or 0)
        if read is not None:
            places.append((name, read, slice(begin, end)))
        begin = end

    def decode(record: Stored) -> dict[str, Any]:
        if len(record) != n_fixed:
            raise ShardDamagedError(f"a record of {n_fixed} bytes was expected, found {len(record)}")
        sample = {}
        name = ""
        try:
            for name, read, place in places:
                sample[name] = read(record[place])
        except FormatError as error:
            _name_column(error, name)
            raise
        return sample

    return decode


def _variable_decoder(steps: list[_Step], n_fixed: int) -> Decoder:
    n_variable = sum(size is None for _, size, _ in steps)
    head = struct.Struct(f"<{n_variable}I")
    unpack_lengths = head.unpack_from
    n_head = head.size
    n_known = n_head + n_fixed

    def decode(record: Stored) -> dict[str, Any]:
        n_bytes = len(record)
        if n_bytes < n_known:
            raise ShardDamagedError(f"a record of at least {n_known} bytes was expected, found {n_bytes}")
        lengths = unpack_lengths(record)
        if sum(lengths) != n_bytes - n_known:
            raise ShardDamagedError(
                f"a record says that its values have {n_fixed} + {sum(lengths)} bytes, but {n_bytes - n_head} are there"
            )
        sample = {}
        name = ""
        begin = n_head
        following = iter(lengths)
        try:
            for name, size, read in steps:
                end = begin + (next(following) if size is None else size)
                if read is not None:
                    sample[name] = read(record[begin:end])
                begin = end
        except FormatError as error:
            _name_column(error, name)
            raise
        return sample

    return decode


def _name_column(error: StreamingError, name: str) -> None:
    """Put the name of the column into an error of its codec, which does not know it."""
    error.args = (f"column {name!r}: {error}", *error.args[1:])


# --- writing a sample


def mds_encoder(columns: Mapping[str, str]) -> Encoder:
    """Make a function from a sample to the bytes of its record; `columns` maps names to encodings.

    Keys of a sample that are no columns are ignored. A `bytes` value is stored as it is in a column of any encoding.
    Raises the errors of `table.find`. The function raises ColumnMissingError, ColumnSizeError and the errors of
    `ColumnCodec.encode`.
    """
    schema = mds_schema(columns)
    steps = [
        (name, size, table.find(encoding).encode)
        for name, encoding, size in zip(schema.column_names, schema.column_encodings, schema.column_sizes)
    ]
    pack_lengths = struct.Struct(f"<{sum(size is None for _, size, _ in steps)}I").pack

    def encode(sample: Mapping[str, Any]) -> bytes:
        lengths = []
        values = []
        name = ""
        try:
            for name, size, write in steps:
                value = sample[name]
                stored = value if isinstance(value, bytes) else write(value)
                if size is None:
                    lengths.append(len(stored))
                elif len(stored) != size:
                    raise ColumnSizeError(f"the value has {len(stored)} bytes, the column {size}")
                values.append(stored)
        except StreamingError as error:
            _name_column(error, name)
            raise
        except KeyError as error:
            if name in sample:
                raise
            raise ColumnMissingError(f"the sample has no column {name!r}; it has {list(sample)[:20]}") from error
        try:
            return b"".join((pack_lengths(*lengths), *values))
        except struct.error as error:
            raise ValueRangeError("a value of 4 GiB or more cannot be stored; split the sample") from error

    if not steps:
        return _refuse_columnless
    return encode


def _refuse_columnless(sample: Mapping[str, Any]) -> bytes:
    raise ValueTypeError("a dataset without columns cannot hold samples; name at least one column")


# --- the shard object and the shard's own copy of it


def mds_config(
    schema: Schema, *, compression: str | None, hashes: Collection[str], size_limit: int | None
) -> dict[str, Any]:
    """The keys that all shards of one writer have in common, as each shard and the index hold them."""
    return {
        "column_encodings": list(schema.column_encodings),
        "column_names": list(schema.column_names),
        "column_sizes": list(schema.column_sizes),
        "compression": compression,
        "format": "mds",
        "hashes": list(hashes),
        "size_limit": size_limit,
        "version": 2,
    }


def config_text(config: Mapping[str, Any]) -> bytes:
    """The config as a shard holds it: JSON with sorted keys."""
    return json.dumps(config, sort_keys=True).encode()


def shard_head(config: bytes, record_lengths: Collection[int]) -> bytes:
    """The bytes of a shard before its records. Raises ValueRangeError for a shard above 4 GiB."""
    n = len(record_lengths)
    first = header_bytes(n) + len(config)
    ends = np.empty(n + 1, np.int64)
    ends[0] = first
    ends[1:] = np.fromiter(record_lengths, np.int64, n)
    np.cumsum(ends, out=ends)
    if ends[-1] > MAX_OFFSET:
        raise ValueRangeError(f"a shard of {ends[-1]} bytes cannot be written: offsets are 32 bits; set size_limit")
    return struct.pack("<I", n) + ends.astype("<u4").tobytes() + config
