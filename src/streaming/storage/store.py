"""What a store is: six verbs over names below one place.

Every error is one of `streaming.errors`: ObjectMissingError, ObjectForbiddenError, StoreBusyError,
StoreUnreachableError, TransferDamagedError; no client library's own error leaves a store. A store tries once; who
calls it tries again. `tests/contracts` has the suite that each store passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a store says of an object without giving it."""

    name: str  # relative to the store's place
    n_bytes: int
    version: str | None  # changes when the content changes (an ETag), None if the store has no such thing


@dataclass(frozen=True, slots=True)
class Content:
    """An object on its way: what it is, and its bytes from `offset` on, in order. The chunks can be read once."""

    facts: ObjectFacts
    offset: int
    chunks: Iterator[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an object, whole, and what the object is."""

    facts: ObjectFacts
    data: bytes


class Store(Protocol):
    """Objects below one place. Thread-safe. Names are relative, with `/` between parts."""

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """The object from byte `offset` on; with `version`, TransferDamagedError if it is another one by now."""
        ...

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """The bytes from `begin` to below `end`, in one request; as many as asked for, or TransferDamagedError.

        With `version` also TransferDamagedError if the object is another one by now.
        """
        ...

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """Store the local file `path` as `name`, whole or not at all; `moved` is told the bytes read so far."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """All objects below the folder `prefix`, at any depth, in no particular order; none if there is none."""
        ...

    def head(self, name: str) -> ObjectFacts:
        """What the object is."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object; done if there is none."""
        ...
