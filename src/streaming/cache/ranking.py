"""Things in order of a rank that changes."""

from __future__ import annotations

import heapq
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Any)
R = TypeVar("R", bound=Any)


class Ranking(Generic[T, R]):
    """Things by rank, the lowest first; O(log n) a call on average. Things and ranks can be compared and hashed."""

    def __init__(self) -> None:
        self._ranks: dict[T, R] = {}
        self._heap: list[tuple[R, T]] = []  # with entries of ranks that no longer hold

    def put(self, thing: T, rank: R) -> None:
        """The thing has this rank from now on."""
        if self._ranks.get(thing) == rank:
            return
        self._ranks[thing] = rank
        heapq.heappush(self._heap, (rank, thing))
        if len(self._heap) > 64 + 2 * len(self._ranks):
            self._heap = [(rank, thing) for thing, rank in self._ranks.items()]
            heapq.heapify(self._heap)

    def drop(self, thing: T) -> None:
        """The thing has no rank."""
        self._ranks.pop(thing, None)

    def first(self) -> tuple[T, R] | None:
        """The thing of the lowest rank."""
        while self._heap:
            rank, thing = self._heap[0]
            if self._ranks.get(thing) == rank:
                return thing, rank
            heapq.heappop(self._heap)
        return None
