"""What a fetcher has done, in numbers: for each remote and in all."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """Counts by name, for each remote. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, remote: str, **numbers: int) -> None:
        """Add to the counts of a remote."""
        with self._lock:
            counts = self._counts.setdefault(remote, Counter())
            for name, number in numbers.items():
                counts[name] += number

    def of(self, remotes: list[str]) -> dict[str, dict[str, int]]:
        """The counts of these remotes: remote → name → number."""
        with self._lock:
            return {remote: dict(self._counts.get(remote, {})) for remote in remotes}

    def total(self) -> dict[str, int]:
        """The counts over all remotes."""
        with self._lock:
            return dict(sum(self._counts.values(), Counter()))
