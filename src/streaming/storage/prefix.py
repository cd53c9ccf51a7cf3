"""A prefix of a store as a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from streaming.storage.store import Content, ObjectFacts, Part, Store


class PrefixStore:
    """The objects below a prefix of another store, so that all streams of one bucket share its client."""

    def __init__(self, whole: Store, prefix: str) -> None:
        self._whole, self._prefix = whole, f"{prefix}/"

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        content = self._whole.get(self._prefix + name, offset=offset, version=version)
        return replace(content, facts=replace(content.facts, name=name))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        part = self._whole.get_range(self._prefix + name, begin, end, version=version)
        return replace(part, facts=replace(part.facts, name=name))

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        self._whole.put(self._prefix + name, path, moved=moved)

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        for facts in self._whole.list((self._prefix + prefix).rstrip("/")):
            yield replace(facts, name=facts.name.removeprefix(self._prefix))

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return replace(self._whole.head(self._prefix + name), name=name)

    def delete(self, name: str) -> None:
        """See Store."""
        self._whole.delete(self._prefix + name)
