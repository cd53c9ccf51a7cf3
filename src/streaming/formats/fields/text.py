"""Text, raw bytes, and numbers stored as text: `str`, `bytes`, `str_int`, `str_float`, `str_decimal`."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from streaming.errors import ValueDecodeError, ValueEncodeError, ValueTypeError
from streaming.formats.fields.codec import ColumnCodec, Stored

N = TypeVar("N")


class TextEncodeError(ValueEncodeError, UnicodeEncodeError):
    """Text that UTF-8 cannot hold: a lone surrogate."""

    def __init__(self, message: str) -> None:
        UnicodeEncodeError.__init__(self, "utf-8", "", 0, 0, message)
        self.args = (message,)  # which pickle and `str` use

    __str__ = Exception.__str__


class TextDecodeError(ValueDecodeError, UnicodeDecodeError):
    """Stored bytes that are not UTF-8."""

    def __init__(self, message: str) -> None:
        UnicodeDecodeError.__init__(self, "utf-8", b"", 0, 0, message)
        self.args = (message,)

    __str__ = Exception.__str__


def _encode_str(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueTypeError(f"'str' takes text, got {type(value).__name__}")
    return utf8(value)


def utf8(value: str) -> bytes:
    """Encode text as UTF-8. Raises TextEncodeError."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise TextEncodeError(f"UTF-8 cannot hold this text: {error}; use 'json' or remove lone surrogates") from None


def decoded(stored: Stored) -> str:
    """Decode UTF-8 bytes to text. Raises TextDecodeError."""
    try:
        return str(stored, "utf-8")
    except UnicodeDecodeError as error:
        raise TextDecodeError(f"stored text is not UTF-8: {error}") from None


def _encode_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueTypeError(f"'bytes' takes bytes, got {type(value).__name__}; use bytes(value)")
    return value


def _encode_int(value: Any) -> bytes:
    if not isinstance(value, int):
        raise ValueTypeError(f"'str_int' takes a Python int, got {type(value).__name__}; use int(value)")
    try:
        return b"%d" % value  # True is stored as 1: as 'True' it could not be read back
    except ValueError as error:  # Python's limit on digits, which readers have too
        raise ValueEncodeError(f"'str_int' cannot hold an int of {value.bit_length()} bits: {error}") from error


def _encode_float(value: Any) -> bytes:
    if not isinstance(value, float):
        raise ValueTypeError(f"'str_float' takes a float, got {type(value).__name__}; use float(value)")
    return float.__repr__(value).encode()


def _encode_decimal(value: Any) -> bytes:
    if not isinstance(value, Decimal):
        raise ValueTypeError(f"'str_decimal' takes a decimal.Decimal, got {type(value).__name__}")
    return str(value).encode()


def _decode_int(stored: Stored) -> int:
    return _number(stored, int, "str_int")


def _decode_float(stored: Stored) -> float:
    return _number(stored, float, "str_float")


def _decode_decimal(stored: Stored) -> Decimal:
    return _number(stored, Decimal, "str_decimal")


def _number(stored: Stored, kind: Callable[[str], N], name: str) -> N:
    text = decoded(stored)
    try:
        return kind(text)
    except (ValueError, InvalidOperation) as error:
        raise ValueDecodeError(f"stored text is no {name!r}: {text[:60]!r}") from error


CODECS: Final[dict[str, ColumnCodec]] = {
    "str": ColumnCodec(None, _encode_str, decoded),
    "bytes": ColumnCodec(None, _encode_bytes, bytes),
    "str_int": ColumnCodec(None, _encode_int, _decode_int),
    "str_float": ColumnCodec(None, _encode_float, _decode_float),
    "str_decimal": ColumnCodec(None, _encode_decimal, _decode_decimal),
}
