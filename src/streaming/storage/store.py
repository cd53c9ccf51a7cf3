"""The protocol of stores: six operations on the objects below one place.

Every error is one of `streaming.errors`: ObjectMissingError, ObjectForbiddenError, StoreBusyError,
StoreUnreachableError, TransferDamagedError; no error of a client library leaves a store. A store tries once; its caller
retries. Every store passes the suite `streaming.testing.StoreContract`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """An object's name, size and version."""

    name: str  # relative to the place of the store
    n_bytes: int
    version: str | None  # changes when the content changes, such as an ETag; None if the store has none
    modified_s: float | None = None  # when it was written, since 1970 by the store's clock; None if the store is silent


@dataclass(frozen=True, slots=True)
class Content:
    """An object being read: its facts, and its bytes from `offset` on, in order. The chunks can be read once."""

    facts: ObjectFacts
    offset: int
    chunks: Iterator[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Part:
    """A range of an object's bytes, complete, and the object's facts."""

    facts: ObjectFacts
    data: bytes | memoryview


class Store(Protocol):
    """The objects below one place. Thread-safe. Names are relative to it, with `/` between parts."""

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """Read an object from byte `offset` on. Raises TransferDamagedError if its version is not `version`."""
        ...

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """Read the bytes from `begin` to below `end`, in one request.

        Raises TransferDamagedError if the object is shorter, or if its version is not `version`.
        """
        ...

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """Store the local file `path` as `name`, whole or not at all; call `moved` with the bytes read so far."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Yield all objects below the folder `prefix`, at any depth, in no particular order; none if it is missing."""
        ...

    def head(self, name: str) -> ObjectFacts:
        """Return the object's facts."""
        ...

    def delete(self, name: str) -> None:
        """Delete the object; a missing one is no error."""
        ...
