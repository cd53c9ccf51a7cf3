"""Encodings that users register.

The table belongs to the process: a worker that was started by spawn must register again, as with any Python registry.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

from streaming.errors import EncodingNameError, EncodingParameterError, OptionError
from streaming.formats.fields.codec import ColumnCodec, Stored


@runtime_checkable
class Encoding(Protocol):
    """The interface of a user's encoding.

    `size` is the number of bytes of every value, or None if they differ. A class (or object) that also has
    `from_str(text)` can be named as `name:text`.
    """

    size: int | None

    def encode(self, obj: Any, /) -> bytes:
        """The bytes to store."""

    def decode(self, data: bytes, /) -> Any:
        """The value of these stored bytes."""


_REGISTERED: Final[dict[str, Any]] = {}


def register_encoding(name: str, encoding: Encoding | type) -> None:
    """Register `encoding` as the column encoding `name`, for writers and readers of this process.

    A class is instantiated without arguments. A later registration of the same name replaces an earlier one; built-in
    names may be replaced too. Raises OptionError.
    """
    if not name or ":" in name:
        raise OptionError(f"an encoding name must not be empty or hold a colon, got {name!r}")
    for method in ("encode", "decode"):
        if not callable(getattr(encoding, method, None)):
            raise OptionError(f"the encoding {name!r} needs a method {method}()")
    _REGISTERED[name] = encoding


def unregister_encoding(name: str) -> None:
    """Remove a registered encoding. An unknown name is ignored."""
    _REGISTERED.pop(name, None)


def registered(name: str) -> Any | None:
    """The encoding that is registered under this name without parameter, None if there is none."""
    return _REGISTERED.get(name)


def codec(encoding: str) -> ColumnCodec:
    """The codec of a registered `name` or `name:parameter`."""
    name, colon, parameter = encoding.partition(":")
    kind = _REGISTERED.get(name)
    if kind is None:
        raise EncodingNameError(f"no encoding {name!r} is registered; call register_encoding first")
    if colon:
        from_str = getattr(kind, "from_str", None)
        if from_str is None:
            raise EncodingParameterError(f"encoding {encoding!r}: {name!r} has no from_str(), so it takes no parameter")
        made = from_str(parameter)
    else:
        made = kind() if isinstance(kind, type) else kind
    size = getattr(made, "size", None)
    if size is not None and (not isinstance(size, int) or size < 0):
        raise OptionError(f"the size of encoding {encoding!r} must be a number of bytes or None, got {size!r}")

    def encode(value: Any) -> bytes:
        return bytes(made.encode(value))

    def decode(stored: Stored) -> Any:
        return made.decode(bytes(stored))

    return ColumnCodec(size or None, encode, decode)
