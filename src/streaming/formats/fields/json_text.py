"""`json`: any JSON value as text. NaN, infinities and lone surrogates are kept, as in Python's own JSON."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np

from streaming.errors import ValueDecodeError, ValueEncodeError, ValueTypeError
from streaming.formats.fields import text
from streaming.formats.fields.codec import ColumnCodec, Stored

MAX_DEPTH: Final = 64

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class JsonDecodeError(ValueDecodeError, json.JSONDecodeError):
    """A stored value that is not JSON, or is nested too deeply."""

    def __init__(self, message: str) -> None:
        json.JSONDecodeError.__init__(self, message, "", 0)
        self.args = (message,)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args)

    __str__ = Exception.__str__


def encode(value: Any) -> bytes:
    """Encode a value as JSON text: ASCII, keys in their own order, arrays as nested lists.

    Raises ValueTypeError for a type that JSON does not have, ValueEncodeError for a value that could not be read back.
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    try:
        stored = json.dumps(value).encode()
    except TypeError as error:
        raise ValueTypeError(f"'json' cannot hold this value: {error}") from error
    except (ValueError, RecursionError) as error:  # a cycle, too many digits, too deep
        raise ValueEncodeError(f"'json' cannot hold this value: {error}") from error
    if depth(stored) > MAX_DEPTH:
        raise ValueEncodeError(f"'json' values may be nested {MAX_DEPTH} levels deep, this one has {depth(stored)}")
    _refuse_colliding_keys(value)
    return stored


def decode(stored: Stored) -> Any:
    """Decode a JSON text of at most 64 levels. Raises JsonDecodeError."""
    whole = bytes(stored)
    if depth(whole) > MAX_DEPTH:
        raise JsonDecodeError(f"stored JSON is nested deeper than {MAX_DEPTH} levels")
    try:
        return json.loads(text.decoded(whole))
    except (ValueError, RecursionError) as error:
        raise JsonDecodeError(f"stored value is not JSON: {error}") from error


def depth(stored: bytes) -> int:
    """An upper bound of the nesting depth of a JSON text; exact above 64, where it matters."""
    n_open = stored.count(b"[") + stored.count(b"{")
    if n_open <= MAX_DEPTH:
        return n_open
    marks = np.frombuffer(_STRING.sub(b"", stored), np.uint8)
    opens = (marks == ord("[")) | (marks == ord("{"))
    closes = (marks == ord("]")) | (marks == ord("}"))
    return int((opens.astype(np.int32) - closes).cumsum().max(initial=0))


def _refuse_colliding_keys(value: Any) -> None:
    """Raise ValueEncodeError if keys become equal as text: of 1 and "1" in one dict a value would be lost."""
    if isinstance(value, dict):
        if not all(type(key) is str for key in value) and len(json.loads(json.dumps(dict.fromkeys(value)))) != len(
            value
        ):
            raise ValueEncodeError("'json' keys are text, and two keys of one dict have the same text")
        for child in value.values():
            _refuse_colliding_keys(child)
    elif isinstance(value, list | tuple):
        for child in value:
            _refuse_colliding_keys(child)


CODECS: Final[dict[str, ColumnCodec]] = {"json": ColumnCodec(None, encode, decode)}
