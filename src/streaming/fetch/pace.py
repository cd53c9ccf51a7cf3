"""How fast requests may go to one store: as fast as they come until it asks to slow down. Pure: times are arguments.

After such an answer nothing goes to that store for as long as it told, or for a pause that doubles while it goes on
refusing. Then requests go evenly, at less than the rate that was refused, and the rate grows while all goes well.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_SHARE: Final = 0.7  # of the rate that was refused
_GROWTH: Final = 1.05  # of the rate, a second
_COUNTED_S: Final = 2.0  # over which the present rate is measured
_LEAST_RATE: Final = 0.5  # requests a second
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_CALM_S: Final = 60.0  # without a refusal: the limit is lifted


class Pace:
    """The requests to one store. Not thread-safe: who drives it holds a lock."""

    def __init__(self) -> None:
        self._rate = math.inf  # requests a second
        self._recent: deque[float] = deque()  # when requests went, over the last moments
        self._free_s = -math.inf  # the next turn is not before
        self._silent_until_s = -math.inf
        self._pause_s = _FIRST_PAUSE_S
        self._grown_s = -math.inf

    @property
    def rate(self) -> float:
        """Requests a second that may go; infinite where the store has not complained."""
        return self._rate

    def take_turn(self, now_s: float) -> float:
        """The moment at which this request may go; turns are given in the order of asking."""
        self._grow(now_s)
        turn_s = max(now_s, self._free_s, self._silent_until_s)
        if self._rate != math.inf:
            self._free_s = turn_s + 1.0 / self._rate
        self._recent.append(turn_s)
        while self._recent[0] < now_s - _COUNTED_S:
            self._recent.popleft()
        return turn_s

    def may_go(self, now_s: float) -> bool:
        """Whether a turn that has come still holds: a refusal since then takes it back."""
        return now_s >= self._silent_until_s

    def refused(self, now_s: float, retry_after_s: float | None) -> None:
        """The store asked to slow down, and said for how long to be silent if it did."""
        if now_s >= self._silent_until_s:  # else it was sent before we knew: one refusal, not many
            n_recent = sum(now_s - _COUNTED_S <= moment_s <= now_s for moment_s in self._recent)
            self._rate = max(_LEAST_RATE, _SHARE * min(self._rate, max(1.0, n_recent / _COUNTED_S)))
            is_again = now_s - self._silent_until_s < 2 * self._pause_s
            self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s) if is_again else _FIRST_PAUSE_S
        pause_s = self._pause_s if retry_after_s is None else retry_after_s
        self._silent_until_s = max(self._silent_until_s, now_s + pause_s)
        self._grown_s = self._silent_until_s

    def _grow(self, now_s: float) -> None:
        if self._rate == math.inf:
            return
        if now_s - self._silent_until_s > _CALM_S:
            self._rate, self._pause_s = math.inf, _FIRST_PAUSE_S
        elif now_s > self._grown_s:
            self._rate *= _GROWTH ** (now_s - self._grown_s)
            self._grown_s = now_s
