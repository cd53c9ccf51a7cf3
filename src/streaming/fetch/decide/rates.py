"""Rates of one store: how fast requests may go to it, and how fast bytes come. Pure: times are arguments.

Requests go as fast as they come until the store asks to slow down:

1. If such an answer says for how long to be silent, nothing goes to that store for that time.
2. A few refusals among many answers are weather: only the refused request waits. More refusals than chance explains, or
   one that says for how long to be silent, mean a limit: requests then go evenly, a little below the rate that was
   answered. So the store's limit is found, not guessed.
3. While all goes well the rate grows: fast up to half of where it was refused last, slowly from there on, and after a
   minute without a refusal it is free again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

_COUNTED_S: Final = 2.0
"""Seconds over which outcomes are counted, once there are more than `_COUNTED` of them."""
_COUNTED: Final = 40
_WEATHER: Final = 0.05
"""The share of refusals that means nothing."""
_BELOW: Final = 0.9
"""The share of the answered rate at which requests go after a refusal."""
_LEAST_RATE: Final = 1.0
"""Requests a second."""
_HOLDS_S: Final = 3.0
"""Seconds for which a lowered rate stays before it grows."""
_SLOWLY: Final = 1.03
"""Slow growth, a second."""
_FAST: Final = 2.0
"""Fast growth, a second."""
_CALM_S: Final = 60.0
"""Seconds without a refusal after which the rate is free."""
_SURE_S: Final = 0.5
"""Seconds of outcomes that tell where a limit is."""
_SETTLES_S: Final = 1.0
"""Seconds after the rate was lowered whose outcomes say nothing new: stores look back over a second or so."""
_BOOKED_S: Final = 1.0
"""Seconds ahead for which slots are given away."""

_LOOKS_BACK_S: Final = 2.0
"""Seconds over which the throughput is measured."""
_LEAST_S: Final = 0.5
"""Seconds that say anything about a throughput."""
_APART_S: Final = 0.1
"""Seconds between two moments that are remembered."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The moment at which a request may go, or (if it is not booked) at which to ask for a slot again."""

    moment_s: float
    is_booked: bool


class RateLimiter:
    """The requests to one store. Not thread-safe: its driver holds a lock."""

    def __init__(self) -> None:
        self._rate = math.inf  # requests a second
        self._refused_rate = math.inf  # at which a limit was met last
        self._outcomes: deque[tuple[float, bool]] = deque()  # moment, whether refused; since the rate was lowered last
        self._n_refused = 0  # of these
        self._free_s = -math.inf  # the next slot is not before
        self._silent_until_s = -math.inf
        self._refused_s = -math.inf
        self._lowered_s = -math.inf
        self._grown_s = -math.inf

    @property
    def rate(self) -> float:
        """Requests a second that may go; infinite if the store has not complained."""
        return self._rate

    def take_slot(self, now_s: float) -> Slot:
        """Take the next slot, in the order of asking; or the moment to ask again, since the rate may change by then."""
        self._grow(now_s)
        slot_s = max(now_s, self._free_s, self._silent_until_s)
        if slot_s - now_s > _BOOKED_S:
            return Slot(max(now_s + _BOOKED_S / 2, self._silent_until_s), is_booked=False)
        if self._rate != math.inf:
            self._free_s = slot_s + 1.0 / self._rate
        return Slot(slot_s, is_booked=True)

    def may_go(self, now_s: float) -> bool:
        """Whether a slot whose moment has come still holds: a refusal since it was taken revokes it."""
        return now_s >= self._silent_until_s

    def silent_s(self, now_s: float) -> float:
        """Seconds for which nothing may go because the store said so."""
        return max(0.0, self._silent_until_s - now_s)

    def answered(self, now_s: float, sent_s: float) -> None:
        """The store answered the request sent at `sent_s`, or failed in another way than by asking to slow down."""
        self._count(now_s, sent_s, is_refused=False)

    def refused(self, now_s: float, sent_s: float, retry_after_s: float | None) -> None:
        """The store asked to slow down; `retry_after_s` if it said for how long to be silent."""
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
        """Lower the rate. `is_first`: the answers are the first to a burst, which show a limit but not where it is."""
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
        """Count an outcome. False if it is of the time before the rate was lowered, and so says nothing new."""
        if sent_s < self._lowered_s + _SETTLES_S:
            return False
        self._outcomes.append((now_s, is_refused))
        self._n_refused += is_refused
        while len(self._outcomes) > _COUNTED and self._outcomes[0][0] < now_s - _COUNTED_S:
            self._n_refused -= self._outcomes.popleft()[1]
        return True


class Throughput:
    """A rate of bytes, from how many had come in all at some moments. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, n_bytes: int, now_s: float) -> None:
        """Note that `n_bytes` have come by now."""
        seen = self._seen
        if not seen or now_s - seen[-1][0] >= _APART_S:
            seen.append((now_s, n_bytes))
            while len(seen) > 1 and seen[0][0] < now_s - _LOOKS_BACK_S:
                seen.popleft()

    def bytes_per_s(self, n_bytes: int, now_s: float) -> float | None:
        """The rate over the last seconds if `n_bytes` have come by now; None if too little was noted to say."""
        self.note(n_bytes, now_s)
        began_s, n_before = self._seen[0]
        return (n_bytes - n_before) / (now_s - began_s) if now_s - began_s >= _LEAST_S else None
