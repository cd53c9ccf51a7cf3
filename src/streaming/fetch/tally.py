"""What a fetcher has done, in numbers: per remote and in all."""

from __future__ import annotations

import threading
from collections import Counter


class Tally:
    """Counts by name, for each remote. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, remote: str, **numbers: int) -> None:
        """Count more of what was done for a remote."""
        with self._lock:
            counts = self._counts.setdefault(remote, Counter())
            for name, number in numbers.items():
                counts[name] += number

    def of(self, remotes: list[str]) -> dict[str, dict[str, int]]:
        """What was counted, remote → name → number."""
        with self._lock:
            return {remote: dict(self._counts.get(remote, {})) for remote in remotes}

    def total(self) -> dict[str, int]:
        """Over all remotes."""
        with self._lock:
            return dict(sum(self._counts.values(), Counter()))
