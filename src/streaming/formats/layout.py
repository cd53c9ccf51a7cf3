"""Shard layouts by format name.

A layout finds the samples of a shard, and makes the function that decodes a sample. A new format needs an entry in
LAYOUTS and a parser for its index keys.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.errors import FormatError, NotYetError
from streaming.formats import mds
from streaming.formats.schema import Schema


class _RecordOffsets(Protocol):
    def __call__(self, head: bytes | memoryview, n_samples: int, n_bytes: int, /) -> NDArray[np.uint32]: ...


class _HeaderBytes(Protocol):
    def __call__(self, n_samples: int, /) -> int: ...


class _OffsetBytes(Protocol):
    def __call__(self, row: int, /) -> tuple[int, int]: ...


class _RecordBounds(Protocol):
    def __call__(self, offsets: bytes | memoryview, row: int, n_samples: int, n_bytes: int, /) -> tuple[int, int]: ...


class _MakeDecoder(Protocol):
    def __call__(
        self,
        schema: Schema,
        /,
        *,
        columns: Collection[str] | None = ...,
        writable: bool = ...,
        allow_unsafe_types: bool = ...,
    ) -> mds.Decoder: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the shards of one format.

    `offsets_in` is the file that begins with the offset table: the data file, or its `.meta` file. `record_offsets`
    needs the first `header_bytes(n_samples)` bytes of that file; the offsets are places in the data file. A reader of
    one sample does not need the whole table: `offset_bytes(row)` is the place of that sample's two offsets, and
    `record_bounds` reads them.
    """

    offsets_in: Literal["data", "meta"]
    header_bytes: _HeaderBytes
    record_offsets: _RecordOffsets
    offset_bytes: _OffsetBytes
    record_bounds: _RecordBounds
    make_decoder: _MakeDecoder


LAYOUTS: Final[dict[str, Layout]] = {
    "mds": Layout("data", mds.header_bytes, mds.record_offsets, mds.offset_bytes, mds.record_bounds, mds.mds_decoder),
}
_LATER: Final = frozenset(("json", "xsv", "csv", "tsv"))


def layout_of(format_name: str) -> Layout:
    """The layout of a format. Raises NotYetError for one that is only listed so far, FormatError for an unknown one."""
    found = LAYOUTS.get(format_name)
    if found is not None:
        return found
    if format_name in _LATER:
        raise NotYetError(f"shards of the format {format_name!r} are listed but cannot be decoded yet")
    raise FormatError(f"there is no shard format {format_name!r}; known are {', '.join(sorted(LAYOUTS))}")
