"""The column codec: how the values of one encoding become bytes and values again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Stored: TypeAlias = bytes | memoryview
"""The bytes of one stored value. A memoryview is a view of the shard itself."""


@dataclass(frozen=True, slots=True)
class ColumnCodec:
    """Encodes and decodes the values of one encoding.

    `size` is the number of bytes of every value, None if they differ. `encode` raises ValueTypeError, ValueEncodeError
    or ValueRangeError for a value that it cannot keep. `decode` returns a new value, which the caller may change; it
    raises ValueDecodeError. `view`, if there is one, is a cheaper `decode`: its result may be a view of the given bytes
    and must not be written to. If there is a `size`, both are called with exactly that number of bytes.
    """

    size: int | None
    encode: Callable[[Any], bytes]
    decode: Callable[[Stored], Any]
    view: Callable[[Stored], Any] | None = None
