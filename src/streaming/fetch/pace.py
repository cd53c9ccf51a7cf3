"""How fast requests may go to one store: as fast as they come until it asks to slow down. Pure: times are arguments.

1. If such an answer tells for how long to be silent, nothing goes to that store for so long.
2. A few refusals among many answers are weather: who was refused waits by itself. More than chance explains, or one
   that tells for how long, mean a limit: then requests go evenly, a little below the rate that was answered. So the
   store's limit is found, not guessed.
3. While all goes well the rate grows: fast up to half of where it was refused last, slowly from there on, and after a
   minute without a refusal it is free again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

_COUNTED_S: Final = 2.0  # over which outcomes are counted, if there are as many as
_COUNTED: Final = 40
_WEATHER: Final = 0.05  # the share of refusals that means nothing
_BELOW: Final = 0.9  # of the rate that was answered
_LEAST_RATE: Final = 1.0  # requests a second
_HOLDS_S: Final = 3.0  # a rate, before it grows
_SLOWLY: Final = 1.03  # growth a second
_FAST: Final = 2.0
_CALM_S: Final = 60.0
_SURE_S: Final = 0.5  # of outcomes tell where a limit is
_SETTLES_S: Final = 1.0  # after the rate was lowered: stores look back over a second or so
_BOOKED_S: Final = 1.0  # turns are given away so far ahead


@dataclass(frozen=True, slots=True)
class Turn:
    """A moment: of one's turn, or (not booked) at which to ask for one again."""

    moment_s: float
    is_booked: bool


class Pace:
    """The requests to one store. Not thread-safe: who drives it holds a lock."""

    def __init__(self) -> None:
        self._rate = math.inf  # requests a second
        self._refused_rate = math.inf  # at which a limit was met last
        self._outcomes: deque[tuple[float, bool]] = deque()  # moment, whether refused; since the rate was lowered last
        self._n_refused = 0  # of these
        self._free_s = -math.inf  # the next turn is not before
        self._silent_until_s = -math.inf
        self._refused_s = -math.inf
        self._lowered_s = -math.inf
        self._grown_s = -math.inf

    @property
    def rate(self) -> float:
        """Requests a second that may go; infinite where the store has not complained."""
        return self._rate

    def take_turn(self, now_s: float) -> Turn:
        """When this request may go, in the order of asking; or when to ask again: the rate may have changed by then."""
        self._grow(now_s)
        turn_s = max(now_s, self._free_s, self._silent_until_s)
        if turn_s - now_s > _BOOKED_S:
            return Turn(max(now_s + _BOOKED_S / 2, self._silent_until_s), is_booked=False)
        if self._rate != math.inf:
            self._free_s = turn_s + 1.0 / self._rate
        return Turn(turn_s, is_booked=True)

    def may_go(self, now_s: float) -> bool:
        """Whether a turn that has come still holds: a refusal since then takes it back."""
        return now_s >= self._silent_until_s

    def silent_s(self, now_s: float) -> float:
        """For how long nothing may go because the store told so."""
        return max(0.0, self._silent_until_s - now_s)

    def answered(self, now_s: float, sent_s: float) -> None:
        """The store gave what was asked for at `sent_s`, or failed in some other way."""
        self._count(now_s, sent_s, is_refused=False)

    def refused(self, now_s: float, sent_s: float, retry_after_s: float | None) -> None:
        """The store asked to slow down, and said for how long to be silent if it did."""
        self._refused_s = now_s
        if retry_after_s is not None:
            self._silent_until_s = max(self._silent_until_s, now_s + retry_after_s)
        is_news = self._count(now_s, sent_s, is_refused=True)
        if is_news and self._is_more_than_weather():
            self._lower(now_s)
        elif is_news and retry_after_s is not None:
            self._lower(now_s, is_first=now_s - self._outcomes[0][0] < _SURE_S)

    def _is_more_than_weather(self) -> bool:
        expected = _WEATHER * max(_COUNTED, len(self._outcomes))
        return self._n_refused > expected + 2.0 * math.sqrt(expected)

    def _lower(self, now_s: float, *, is_first: bool = False) -> None:
        """Go more slowly. `is_first`: of the first answers to a burst: there is a limit, but they do not tell where."""
        counted_s = max(0.1, now_s - self._outcomes[0][0])
        asked_rate = min(self._rate, len(self._outcomes) / counted_s)
        answered_rate = min(self._rate, (len(self._outcomes) - self._n_refused) / counted_s)
        self._refused_rate = math.inf if is_first else asked_rate
        self._rate = max(_LEAST_RATE, _BELOW * answered_rate)
        self._grown_s = max(now_s, self._silent_until_s) + _HOLDS_S
        self._free_s = max(now_s, self._silent_until_s) + 1.0 / self._rate
        self._outcomes.clear()
        self._n_refused, self._lowered_s = 0, now_s

    def _grow(self, now_s: float) -> None:
        if self._rate == math.inf:
            return
        if now_s - max(self._refused_s, self._silent_until_s) > _CALM_S:
            self._rate = math.inf
        elif now_s > self._grown_s:
            growth = _FAST if self._rate < self._refused_rate / 2 else _SLOWLY
            self._rate *= growth ** min(1.0, now_s - self._grown_s)
            self._grown_s = now_s

    def _count(self, now_s: float, sent_s: float, *, is_refused: bool) -> bool:
        """Count an outcome, unless it tells of the time before the rate was lowered: then it says nothing new."""
        if sent_s < self._lowered_s + _SETTLES_S:
            return False
        self._outcomes.append((now_s, is_refused))
        self._n_refused += is_refused
        while len(self._outcomes) > _COUNTED and self._outcomes[0][0] < now_s - _COUNTED_S:
            self._n_refused -= self._outcomes.popleft()[1]
        return True
