"""`ndarray`, `ndarray:<dtype>` and `ndarray:<dtype>:<shape>`.

| form | stored |
| --- | --- |
| `ndarray` | dtype code (1 byte), shape, values |
| `ndarray:<dtype>` | shape, values |
| `ndarray:<dtype>:<shape>` | values (fixed size) |

shape: one byte `ndim << 2 | w`, then ndim unsigned ints of 2**w bytes. values: C order, little-endian.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import EncodingConfigError, ValueDecodeError, ValueEncodeError, ValueTypeError
from streaming.formats.fields.codec import ColumnCodec, Stored

MAX_AXES: Final = 63

_CODE_OF: Final = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
_DTYPES: Final = {name: np.dtype(name).newbyteorder("<") for name in _CODE_OF}
# Any byte order in, little-endian out. The key is the dtype itself, since computing its name takes microseconds.
_STORED_AS: Final = {
    **{dtype: dtype for dtype in _DTYPES.values()},
    **{dtype.newbyteorder(">"): dtype for dtype in _DTYPES.values()},
}
_BY_CODE: Final = {code: _DTYPES[name] for name, code in _CODE_OF.items()}
_SHAPES: Final = [struct.Struct(f"<{first >> 2}{'BHIQ'[first & 3]}") for first in range(256)]


def codec(parameter: str | None) -> ColumnCodec:
    """The codec of `ndarray` (None or empty) or of `ndarray:<parameter>`. Raises EncodingConfigError."""
    if not parameter:
        return _any_dtype()
    fields = parameter.split(":")
    if len(fields) > 2:
        raise EncodingConfigError(f"'ndarray:{parameter}' has more parts than dtype and shape")
    if fields[0] not in _DTYPES:
        raise EncodingConfigError(f"'ndarray:{parameter}': the dtype must be one of {', '.join(_DTYPES)}")
    dtype = _DTYPES[fields[0]]
    if len(fields) == 1:
        return _one_dtype(dtype)
    return _one_shape(dtype, _parse_shape(fields[1], parameter))


def _parse_shape(text: str, parameter: str) -> tuple[int, ...]:
    lengths = text.split(",")
    if not all(length.isascii() and length.isdigit() and len(length) <= 19 and int(length) for length in lengths):
        raise EncodingConfigError(f"'ndarray:{parameter}': the shape must be numbers of 1 or more, as in '2,3'")
    if len(lengths) > MAX_AXES:
        raise EncodingConfigError(f"'ndarray:{parameter}' has more than {MAX_AXES} axes")
    return tuple(map(int, lengths))


def _any_dtype() -> ColumnCodec:
    def encode(value: Any) -> bytes:
        array, dtype = _checked(value)
        return _code_and_shape(dtype, array.shape) + _values(array, dtype)

    def view(stored: Stored) -> NDArray[Any]:
        dtype = _BY_CODE.get(stored[0]) if stored else None
        if dtype is None:
            raise ValueDecodeError(f"stored array names no known dtype: {_code_text(stored)}")
        return _shaped(stored, 1, dtype)

    def decode(stored: Stored) -> NDArray[Any]:
        return view(stored).copy()

    return ColumnCodec(None, encode, decode, _read_only(view))


def _one_dtype(dtype: np.dtype[Any]) -> ColumnCodec:
    def encode(value: Any) -> bytes:
        array, _ = _checked(value, dtype)
        return _packed_shape(array.shape) + _values(array, dtype)

    def view(stored: Stored) -> NDArray[Any]:
        return _shaped(stored, 0, dtype)

    def decode(stored: Stored) -> NDArray[Any]:
        return _shaped(stored, 0, dtype).copy()

    return ColumnCodec(None, encode, decode, _read_only(view))


def _one_shape(dtype: np.dtype[Any], shape: tuple[int, ...]) -> ColumnCodec:
    def encode(value: Any) -> bytes:
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            return value.tobytes()
        array, _ = _checked(value, dtype)
        if array.shape != shape:
            raise ValueEncodeError(f"the column holds arrays of shape {shape}, got {array.shape}")
        return _values(array, dtype)

    def view(stored: Stored) -> NDArray[Any]:
        return np.ndarray(shape, dtype, stored)

    def decode(stored: Stored) -> NDArray[Any]:
        return np.ndarray(shape, dtype, stored).copy()

    return ColumnCodec(math.prod(shape) * dtype.itemsize, encode, decode, _read_only(view))


def _read_only(view: Any) -> Any:
    def read(stored: Stored) -> NDArray[Any]:
        array: NDArray[Any] = view(stored)
        array.flags.writeable = False
        return array

    return read


def _checked(value: Any, dtype: np.dtype[Any] | None = None) -> tuple[NDArray[Any], np.dtype[Any]]:
    """`value` as an array that can be stored and read back equal, and the dtype in which to store it."""
    if isinstance(value, np.generic):
        raise ValueEncodeError(_scalar_refused(value))
    if not isinstance(value, np.ndarray):
        raise ValueTypeError(f"'ndarray' takes a NumPy array, got {type(value).__name__}; use np.asarray(value)")
    if isinstance(value, np.ma.MaskedArray):
        raise ValueEncodeError("'ndarray' would lose the mask of a masked array; fill it first")
    stored_as = _STORED_AS.get(value.dtype)
    if stored_as is None:
        raise ValueEncodeError(f"'ndarray' cannot hold dtype {value.dtype}; it holds {', '.join(_DTYPES)}")
    if dtype is not None and stored_as != dtype:
        raise ValueEncodeError(f"the column holds {dtype.name} arrays, got {value.dtype.name}; convert with astype()")
    if not value.ndim:
        raise ValueEncodeError(_scalar_refused(value))
    if not value.size:
        raise ValueEncodeError(
            f"'ndarray' cannot hold a numpy array with 0 elements, got shape {value.shape}; leave such samples out, or "
            "use a 'bytes' column"
        )
    if value.ndim > MAX_AXES:
        raise ValueEncodeError(f"'ndarray' holds at most {MAX_AXES} axes, got {value.ndim}")
    return value, stored_as


def _scalar_refused(value: Any) -> str:
    return (
        f"Attempting to encode a scalar with NDArray encoding: a {value.dtype.name} without an axis; use a column of "
        "numbers such as 'int64' or 'float32', or np.atleast_1d(value)"
    )


def _values(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return array.astype(dtype, copy=False).tobytes()


@lru_cache(maxsize=1024)
def _packed_shape(shape: tuple[int, ...]) -> bytes:
    longest = max(shape)
    width = (longest >= 1 << 8) + (longest >= 1 << 16) + (longest >= 1 << 32)
    first = len(shape) << 2 | width
    return bytes([first]) + _SHAPES[first].pack(*shape)


@lru_cache(maxsize=1024)
def _code_and_shape(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return bytes([_CODE_OF[dtype.name]]) + _packed_shape(shape)


def _shaped(stored: Stored, start: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A view of the array whose shape begins at byte `start`. Raises ValueDecodeError."""
    if len(stored) <= start:
        raise ValueDecodeError("stored array ends before its shape")
    head = _SHAPES[stored[start]]
    begin = start + 1 + head.size
    if len(stored) < begin:
        raise ValueDecodeError("stored array ends inside its shape")
    shape = head.unpack_from(stored, start + 1)
    if math.prod(shape) * dtype.itemsize != len(stored) - begin:
        raise ValueDecodeError(
            f"stored array of shape {shape} and {dtype.name} has {len(stored) - begin} bytes of values"
        )
    try:
        return np.ndarray(shape, dtype, stored, begin)
    except ValueError as error:  # more axes, or longer empty axes, than this NumPy takes
        raise ValueDecodeError(f"stored array of shape {shape}: {error}") from error


def _code_text(stored: Stored) -> str:
    return f"code {stored[0]}" if stored else "no bytes at all"
