"""`pkl`: Python pickle. Decoding may run any code that the data name, so readers refuse it by default."""

from __future__ import annotations

import pickle
from typing import Any, Final

from streaming.errors import ValueDecodeError, ValueEncodeError, ValueTypeError
from streaming.formats.fields.codec import ColumnCodec, Stored


class PickleDecodeError(ValueDecodeError, pickle.UnpicklingError):
    """A stored value that cannot be unpickled."""


def _encode(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except (AttributeError, TypeError) as error:
        raise ValueTypeError(f"'pkl' cannot hold this {type(value).__name__}: {error}") from error
    except (pickle.PicklingError, ValueError, RecursionError) as error:
        # Newer Pythons raise PicklingError where older ones raise AttributeError. Callers see one kind.
        kind = ValueTypeError if isinstance(error, pickle.PicklingError) else ValueEncodeError
        raise kind(f"'pkl' cannot hold this {type(value).__name__}: {error}") from error


def _decode(stored: Stored) -> Any:
    try:
        return pickle.loads(stored)
    except Exception as error:  # unpickling runs foreign code, which may raise anything
        raise PickleDecodeError(f"stored value cannot be unpickled: {error}") from error


CODEC: Final = ColumnCodec(None, _encode, _decode)
