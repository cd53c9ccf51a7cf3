"""The schema of a shard: its format and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streaming.errors import FormatError
from streaming.formats.fields import table

SEPARATORS: Final = {"csv": ",", "tsv": "\t"}
"""The separators of formats that do not state theirs in the index."""

MAX_FIXED_BYTES: Final = 2**32 - 1  # offsets in a shard are 32 bits wide


@dataclass(frozen=True, slots=True)
class Schema:
    """The format of a shard, and its columns in stored order. Many shards share one schema.

    `column_sizes` holds the bytes of a fixed-size column, None for others. `newline` and `separator` are None if the
    format has none; the separator that csv and tsv imply is filled in. Raises FormatError for a contradiction.
    """

    format: str
    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[int | None, ...]
    newline: str | None = None
    separator: str | None = None

    def __post_init__(self) -> None:
        if not len(self.column_names) == len(self.column_encodings) == len(self.column_sizes):
            raise FormatError(
                f"{len(self.column_names)} column names, {len(self.column_encodings)} encodings and "
                f"{len(self.column_sizes)} sizes: there must be as many of each"
            )
        if len(set(self.column_names)) != len(self.column_names):
            twice = next(name for name in self.column_names if self.column_names.count(name) > 1)
            raise FormatError(f"the column {twice!r} is listed twice")
        if sum(size or 0 for size in self.column_sizes) > MAX_FIXED_BYTES:
            raise FormatError("the fixed-size columns of one sample exceed 4 GiB")


def mds_schema(columns: Mapping[str, str]) -> Schema:
    """The schema of a writer of these columns, which sorts them by name, in code point order.

    Raises the errors of `fields.table.find` for an encoding that does not exist.
    """
    names = tuple(sorted(columns))
    encodings = tuple(columns[name] for name in names)
    return Schema("mds", names, encodings, tuple(table.find(encoding).size or None for encoding in encodings))
