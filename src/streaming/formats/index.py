"""`index.json`: parses its bytes to a `ShardIndex`, and dumps shard objects to bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from streaming.errors import IndexFormatError
from streaming.formats.index_parser import read_index
from streaming.formats.names import INDEX_NAME
from streaming.formats.schema import Schema
from streaming.formats.shard_index import VERSION, ShardIndex, file_entry

__all__ = [
    "INDEX_NAME",
    "MAX_INDEX_BYTES",
    "VERSION",
    "Schema",
    "ShardIndex",
    "dump_index",
    "file_entry",
    "parse_index",
]

MAX_INDEX_BYTES: Final = 1 << 30


def dump_index(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Dump shard objects to the bytes of an `index.json`: sorted keys, default separators, ASCII, no newline.

    >>> dump_index([])
    b'{"shards": [], "version": 2}'
    """
    return json.dumps({"shards": list(entries), "version": VERSION}, sort_keys=True).encode()


def parse_index(data: bytes, *, where: str) -> ShardIndex:
    """Parse the bytes of an `index.json`; `where` names the file in errors.

    Raises IndexFormatError, which names the shard number and the key. Unknown keys are ignored. Unknown encodings are
    accepted: a user may register them before reading. 10⁵ shards take about half a second, and three times the memory
    of the text.
    """
    if len(data) > MAX_INDEX_BYTES:
        raise IndexFormatError(f"{where} has {len(data)} bytes; an index may have {MAX_INDEX_BYTES} at most")
    return read_index(bytes(data), where=where)
