"""Numbers of a fixed width: `int`, `uint8` … `int64`, `float16`, `float32`, `float64`.

A value that cannot be read back as written is refused. An integer column takes any value that equals an integer in
range (True, 3.0, a NumPy integer). A float column takes any real number and rounds it to its precision, but refuses a
finite number that would become an infinity, and an integer that a 64-bit float cannot hold.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from streaming.errors import ValueEncodeError, ValueRangeError, ValueTypeError
from streaming.formats.fields.codec import ColumnCodec, Stored

_INTEGERS: Final = {
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
}
_FLOATS: Final = {"float16": "e", "float32": "f", "float64": "d"}
_NOT_NUMBERS: Final = (str, bytes, bytearray, memoryview, complex, np.complexfloating, type(None))


def _python_int_codec() -> ColumnCodec:
    def encode(value: Any) -> bytes:
        if not isinstance(value, int):
            raise ValueTypeError(f"'int' takes a Python int, got {_describe(value)}; use int(value) or 'int64'")
        return _packed(pack, value, "int")

    def decode(stored: Stored) -> int:
        return int.from_bytes(stored, "little", signed=True)

    pack = struct.Struct("<q").pack
    return ColumnCodec(8, encode, decode)


def _integer_codec(name: str) -> ColumnCodec:
    def encode(value: Any) -> bytes:
        return _packed(pack, value if type(value) is int else _whole(value, name), name)

    pack = struct.Struct("<" + _INTEGERS[name]).pack
    dtype = np.dtype(name).newbyteorder("<")
    return ColumnCodec(dtype.itemsize, encode, _scalar_reader(dtype))


def _float_codec(name: str) -> ColumnCodec:
    def encode(value: Any) -> bytes:
        if type(value) is own:  # bits, not value: NaNs keep their payload
            return np.array(value, dtype).tobytes()
        real = value if type(value) is float else _real(value, name)
        try:
            return pack(real)
        except OverflowError as error:
            raise ValueRangeError(f"{real!r} is finite but too large for {name!r}") from error

    pack = struct.Struct("<" + _FLOATS[name]).pack
    own = np.dtype(name).type
    dtype = np.dtype(name).newbyteorder("<")
    return ColumnCodec(dtype.itemsize, encode, _scalar_reader(dtype))


def _scalar_reader(dtype: np.dtype[Any]) -> Callable[[Stored], Any]:
    def decode(stored: Stored) -> Any:
        return from_buffer(stored, dtype)[0]

    from_buffer = np.frombuffer
    return decode


def _packed(pack: Callable[[int], bytes], value: int, name: str) -> bytes:
    try:
        return pack(value)
    except struct.error as error:
        raise ValueRangeError(f"{value} does not fit into {name!r}") from error


def _plain(value: Any, name: str) -> Any:
    """The Python number of a NumPy scalar or 0-d array. Raises ValueTypeError for a value that is no number."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, (*_NOT_NUMBERS, np.ndarray)):
        raise ValueTypeError(f"{name!r} takes a number, got {_describe(value)}")
    return value


def _whole(value: Any, name: str) -> int:
    value = _plain(value, name)
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        whole = int(value)
    except TypeError as error:
        raise ValueTypeError(f"{name!r} takes a whole number, got {_describe(value)}") from error
    except (ValueError, OverflowError) as error:  # NaN, infinity
        raise ValueEncodeError(f"{name!r} takes a whole number, got {value!r}") from error
    if whole != value:
        raise ValueEncodeError(f"{name!r} takes a whole number, got {value!r}; round it first, or use a float column")
    return whole


def _real(value: Any, name: str) -> float:
    value = _plain(value, name)
    try:
        real = float(value)
    except TypeError as error:
        raise ValueTypeError(f"{name!r} takes a number, got {_describe(value)}") from error
    except OverflowError as error:
        raise ValueRangeError(f"{name!r} cannot hold a number this large") from error
    except ValueError as error:  # a signalling decimal NaN
        raise ValueEncodeError(f"{name!r} cannot hold {value!r}") from error
    if isinstance(value, int) and real != value:
        raise ValueRangeError(f"{value} loses digits in {name!r}; use an integer column")
    if math.isinf(real) and not isinstance(value, float) and value != real:
        raise ValueRangeError(f"{value!r} is finite but too large for {name!r}")
    return real


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '…'}"


CODECS: Final[dict[str, ColumnCodec]] = {
    "int": _python_int_codec(),
    **{name: _integer_codec(name) for name in _INTEGERS},
    **{name: _float_codec(name) for name in _FLOATS},
}
