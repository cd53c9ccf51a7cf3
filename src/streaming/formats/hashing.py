"""Hashes of files, by the names that an index uses. Digests are lowercase hex."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import xxhash

from streaming.errors import OptionError

_MAKERS: Final[dict[str, Callable[[], Any]]] = {
    "xxh3_64": xxhash.xxh3_64,
    "xxh3_128": xxhash.xxh3_128,
    "xxh128": xxhash.xxh128,
    "xxh64": xxhash.xxh64,
    "xxh32": xxhash.xxh32,
}
_FASTEST_FIRST: Final = (
    *_MAKERS,
    "sha1",
    "blake2b",
    "md5",
    "sha256",
    "blake2s",
    "sha512",
    "sha384",
    "sha224",
    "sha3_224",
    "sha3_256",
    "sha3_384",
    "sha3_512",
)
KNOWN: Final = frozenset(_FASTEST_FIRST)


def is_hash(name: str) -> bool:
    """Whether `name` is a hash that can be computed here."""
    return name in KNOWN


class Hasher(Protocol):
    """A hash in the making."""

    def update(self, data: Any, /) -> None:
        """Add more bytes."""

    def hexdigest(self) -> str:
        """The digest of all bytes so far."""


def hasher(name: str) -> Hasher:
    """A new hash of this name. Raises OptionError for an unknown name."""
    if name not in KNOWN:
        raise OptionError(f"unknown hash {name!r}; known are {', '.join(sorted(KNOWN))}")
    make = _MAKERS.get(name)
    # Not for security: machines that forbid md5 and sha1 as signatures still allow them as checksums.
    return make() if make else hashlib.new(name, usedforsecurity=False)


def digest(name: str, data: bytes | memoryview) -> str:
    """The hex digest of `data`. Raises OptionError for an unknown name."""
    found = hasher(name)
    found.update(data)
    return found.hexdigest()


def fastest(names: Iterable[str]) -> str | None:
    """The fastest of these hashes, None if none of them is known.

    >>> fastest(["md5", "sha1", "xxh64"])
    'xxh64'
    """
    known = KNOWN.intersection(names)
    return min(known, key=_FASTEST_FIRST.index) if known else None


def check_names(names: Iterable[str] | None) -> tuple[str, ...]:
    """The hashes of a writer. Raises OptionError unless they are known names in ascending order."""
    asked = tuple(names or ())
    for name in asked:
        if name not in KNOWN:
            raise OptionError(f"unknown hash {name!r}; known are {', '.join(sorted(KNOWN))}")
    if list(asked) != sorted(asked):
        raise OptionError(f"hashes must be sorted, got {list(asked)}; use {sorted(set(asked))}")
    return asked
