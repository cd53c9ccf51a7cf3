"""How fast bytes come, lately. Pure: times are arguments."""

from __future__ import annotations

from collections import deque
from typing import Final

_LOOKS_BACK_S: Final = 2.0
_LEAST_S: Final = 0.5  # of which a rate says anything
_APART_S: Final = 0.1  # moments that are remembered


class Speed:
    """A rate, from how much had come in all at some moments. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, n_bytes: int, now_s: float) -> None:
        """So many bytes have come by now."""
        seen = self._seen
        if not seen or now_s - seen[-1][0] >= _APART_S:
            seen.append((now_s, n_bytes))
            while len(seen) > 1 and seen[0][0] < now_s - _LOOKS_BACK_S:
                seen.popleft()

    def bytes_per_s(self, n_bytes: int, now_s: float) -> float | None:
        """The rate over the last seconds, if so many bytes have come by now; None: too little was noted to say."""
        self.note(n_bytes, now_s)
        began_s, n_before = self._seen[0]
        return (n_bytes - n_before) / (now_s - began_s) if now_s - began_s >= _LEAST_S else None
