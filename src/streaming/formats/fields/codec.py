"""What a column codec is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Stored: TypeAlias = bytes | memoryview
"""The bytes of one stored value; a memoryview looks into the shard itself."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How values of one encoding are stored.

    `size` is the bytes of every value, None if they differ. `encode` raises ValueTypeError, ValueEncodeError or
    ValueRangeError for what it cannot keep. `decode` gives a value of its own that nobody else sees; it raises
    ValueDecodeError. `view`, where there is one, is a cheaper decode whose result may look into the given bytes and
    must not be written to. With a `size`, decode is given exactly that many bytes.
    """

    size: int | None
    encode: Callable[[Any], bytes]
    decode: Callable[[Stored], Any]
    view: Callable[[Stored], Any] | None = None
