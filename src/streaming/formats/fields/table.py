"""Encodings by name.

The only module that knows all names. A family whose package is slow to import (images) is imported when one of its
codecs is needed; the size of its columns is known without it.
"""

from __future__ import annotations

from typing import Final, Protocol

from streaming.errors import EncodingNameError, EncodingParameterError
from streaming.formats import plugins
from streaming.formats.fields import arrays, json_text, scalars, text
from streaming.formats.fields.codec import ColumnCodec

UNSAFE: Final = frozenset({"pkl"})
"""Encodings that may run code when they are decoded."""

IMAGES: Final = frozenset({"pil", "jpeg", "png", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]"})

_PLAIN: Final[dict[str, ColumnCodec]] = {**scalars.CODECS, **text.CODECS, **json_text.CODECS}
_BUILT_IN: Final = frozenset(_PLAIN) | IMAGES | UNSAFE | {"ndarray"}


class _HasColumns(Protocol):
    @property
    def column_names(self) -> tuple[str, ...]: ...

    @property
    def column_encodings(self) -> tuple[str, ...]: ...


def unsafe_columns(schema: _HasColumns) -> tuple[str, ...]:
    """The columns of a schema that may run code when they are decoded."""
    return tuple(
        name for name, encoding in zip(schema.column_names, schema.column_encodings, strict=True) if encoding in UNSAFE
    )


def is_known(encoding: str) -> bool:
    """Whether the part before the colon names an encoding, built in or registered."""
    name = encoding.partition(":")[0]
    return name in _BUILT_IN or plugins.registered(name) is not None


def size_of(encoding: str) -> int | None:
    """The bytes of every value of this encoding, None if they differ. Raises like `find`; imports nothing slow."""
    if (encoding in IMAGES or encoding in UNSAFE) and plugins.registered(encoding) is None:
        return None
    return find(encoding).size


def find(encoding: str) -> ColumnCodec:
    """The codec of `name` or `name:parameter`.

    Raises EncodingNameError for a name that does not exist, EncodingParameterError for a parameter of an encoding that
    takes none, EncodingConfigError for a parameter that makes no sense.
    """
    name, colon, parameter = encoding.partition(":")
    plugin = plugins.registered(name)
    if plugin is not None:
        return plugins.codec(encoding)
    if name == "ndarray":
        return arrays.codec(parameter if colon else None)
    if colon:
        known = "takes no parameter" if name in _BUILT_IN else "does not exist"
        raise EncodingParameterError(f"encoding {encoding!r}: {name!r} {known}; only 'ndarray:…' has one")
    if encoding in _PLAIN:
        return _PLAIN[encoding]
    if encoding in IMAGES:
        from streaming.formats.fields import images  # imports PIL

        return images.codec(encoding)
    if encoding in UNSAFE:
        from streaming.formats.fields import pickles  # imports pickle, which stays out of processes that never need it

        return pickles.CODEC
    raise EncodingNameError(
        f"there is no encoding {encoding!r}; known are {', '.join(sorted(_BUILT_IN))} and what register_encoding adds"
    )
