"""The pace against simulated stores, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.fetch.decide.rates import RateLimiter, Slot


@dataclass
class Outcome:
    """When requests went to the store, and which of them it refused."""

    sent_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    def rate(self, begin_s: float, end_s: float) -> float:
        return sum(begin_s <= moment_s < end_s for moment_s in self.sent_s) / (end_s - begin_s)

    def share_refused(self, begin_s: float, end_s: float) -> float:
        n = sum(begin_s <= moment_s < end_s for moment_s in self.refused_s)
        return n / max(1.0, self.rate(begin_s, end_s) * (end_s - begin_s))


def simulate(
    refuses: Callable[[float, Outcome], bool],
    *,
    end_s: float,
    retry_after_s: float | None,
    n_workers: int = 32,
    latency_s: float = 0.05,
    seed: int = 0,
) -> tuple[Outcome, RateLimiter]:
    """Workers that always have a request to send, each at its turn; a refused one pauses as `attempted` does."""
    pace, outcome, rng = RateLimiter(), Outcome(), random.Random(seed)
    events: list[tuple[float, int, str, int]] = [(rng.random() * 0.01, i, "ask", 0) for i in range(n_workers)]
    heapq.heapify(events)
    n = n_workers
    while events and events[0][0] < end_s:
        now_s, _, what, n_refused = heapq.heappop(events)
        n += 1
        if what == "ask":
            turn = pace.take_slot(now_s)
            heapq.heappush(events, (turn.moment_s, n, "turn" if turn.is_booked else "ask", n_refused))
        elif not pace.may_go(now_s):
            heapq.heappush(events, (now_s, n, "ask", n_refused))
        else:
            refused = refuses(now_s, outcome)
            outcome.sent_s.append(now_s)
            back_s = now_s + latency_s
            if refused:
                outcome.refused_s.append(now_s)
                pace.refused(back_s, now_s, retry_after_s)
                pause_s = 0.0 if retry_after_s is not None else min(30.0, 0.5 * 2.0**n_refused) * rng.uniform(0.5, 1)
                heapq.heappush(events, (back_s + pause_s, n, "ask", n_refused + 1))
            else:
                pace.answered(back_s, now_s)
                heapq.heappush(events, (back_s, n, "ask", 0))
    return outcome, pace


def above(limit_per_s: float) -> Callable[[float, Outcome], bool]:
    """A store that takes so many requests in any second."""

    def refuses(now_s: float, outcome: Outcome) -> bool:
        recent = [moment_s for moment_s in outcome.sent_s[-4 * int(limit_per_s) - 100 :] if moment_s > now_s - 1.0]
        return len(recent) >= limit_per_s

    return refuses


@pytest.mark.parametrize("limit", [5, 20, 100, 400])
@pytest.mark.parametrize("retry_after_s", [None, 1.0, 3.0])
def test_a_limit_is_found_and_kept(limit: int, retry_after_s: float | None) -> None:
    """In the long run few requests are refused, and what the store takes is used, but for silence that it orders."""
    outcome, _ = simulate(above(limit), end_s=150.0, retry_after_s=retry_after_s)
    rate = outcome.rate(30.0, 150.0)
    assert limit * (0.6 if retry_after_s is None else 0.4) < rate < limit * 1.1
    assert outcome.share_refused(30.0, 150.0) < (0.15 if limit > 10 else 0.25)


@given(st.integers(0, 999), st.floats(0.5, 5.0), st.integers(2, 50))
@settings(max_examples=30)
def test_no_request_goes_sooner_than_told(seed: int, retry_after_s: float, limit: int) -> None:
    """Whatever is under way when a refusal comes back: nothing is sent until its time is over."""
    outcome, _ = simulate(above(limit), end_s=20.0, retry_after_s=retry_after_s, seed=seed)
    for refused_s in outcome.refused_s:
        told_s = refused_s + 0.05
        assert not [m for m in outcome.sent_s if told_s < m < told_s + retry_after_s - 1e-9]


@pytest.mark.parametrize("share", [0.01, 0.03])
def test_weather_is_no_limit(share: float) -> None:
    """A store that refuses a few per cent whatever the rate is not asked more slowly."""
    rng = random.Random(1)
    outcome, _ = simulate(lambda now_s, seen: rng.random() < share, end_s=30.0, retry_after_s=None)
    calm, _ = simulate(lambda now_s, seen: False, end_s=30.0, retry_after_s=None)
    assert outcome.rate(0.0, 30.0) > 0.5 * calm.rate(0.0, 30.0)


def test_an_outage_ends() -> None:
    """A store that refuses everything is hardly asked, and is used fully again soon after it has come back."""
    outcome, pace = simulate(lambda now_s, seen: 5.0 < now_s < 25.0, end_s=130.0, retry_after_s=None)
    calm, _ = simulate(lambda now_s, seen: False, end_s=5.0, retry_after_s=None)
    assert outcome.rate(10.0, 25.0) < 5.0
    assert outcome.rate(60.0, 130.0) > 0.5 * calm.rate(0.0, 5.0)
    assert pace.rate == float("inf")


def test_a_store_that_never_complains_is_never_slowed() -> None:
    """DeadlinePool come at once."""
    pace = RateLimiter()
    for moment_s in range(1000):
        assert pace.take_slot(moment_s * 1e-4) == Slot(moment_s * 1e-4, is_booked=True)
        pace.answered(moment_s * 1e-4, moment_s * 1e-4)
    assert pace.rate == float("inf")


def test_a_first_burst_that_is_refused_does_not_make_it_slow_for_long() -> None:
    """Refusals come back before answers do, and tell that there is a limit, not where: it is looked for at once."""
    pace = RateLimiter()
    for _ in range(64):
        assert pace.take_slot(0.0) == Slot(0.0, is_booked=True)
    pace.refused(0.02, 0.0, retry_after_s=1.0)
    assert pace.silent_s(0.52) == pytest.approx(0.5)
    now_s, n_sent = 0.02, 0
    while now_s < 15.0:
        turn = pace.take_slot(now_s)
        now_s = turn.moment_s
        if turn.is_booked:
            assert now_s >= 1.02
            pace.answered(now_s, now_s)
            n_sent += 1
    assert n_sent > 200
