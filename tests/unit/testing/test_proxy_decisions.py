"""Decisions of a FaultProxy: which rule selects a request, where a fault acts, when bytes and requests may pass."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import OptionError
from streaming.testing import Fault, FaultRule, ProxyLimits
from streaming.testing.proxy_server.answer import BodyAct, body_acts
from streaming.testing.proxy_server.pace import ByteRateLimiter, RequestRateLimiter
from streaming.testing.proxy_server.state import RuleBook

FAULT = Fault(status=503)


def met(book: RuleBook, *paths: str, method: str = "GET", ranged: bool = False) -> list[int | None]:
    """The indexes of the rules that select these requests, one after the other."""
    matches = [book.match(method, path, ranged=ranged) for path in paths]
    return [None if match is None else match[0] for match in matches]


def test_the_first_rule_that_applies_wins() -> None:
    """A request that a rule does not select is left to the next rule."""
    book = RuleBook([FaultRule(FAULT, path="a$"), FaultRule(FAULT, path="^/b/"), FaultRule(FAULT, times=1)])
    assert met(book, "/b/a", "/b/c", "/c", "/c", "/c/a") == [0, 1, 2, None, 0]
    assert book.fired == [2, 1, 1]


def test_a_rule_may_be_for_a_method_or_for_ranges() -> None:
    """None selects any method, and requests with and without ranges."""
    book = RuleBook([FaultRule(FAULT, method="PUT"), FaultRule(FAULT, ranged=True), FaultRule(FAULT, ranged=False)])
    assert met(book, "/x", method="PUT", ranged=True) == [0]
    assert met(book, "/x", ranged=True) == [1]
    assert met(book, "/x", ranged=False) == [2]


def test_once_per_path_is_for_each_path() -> None:
    """Only the first request of each path is selected."""
    book = RuleBook([FaultRule(FAULT, path="s", once_per_path=True)])
    assert met(book, "/s/1", "/s/1", "/s/2", "/s/1", "/s/2") == [0, None, 0, None, None]


def test_requests_may_pass_before_a_rule_begins() -> None:
    """Only requests that the rule would otherwise select are counted."""
    book = RuleBook([FaultRule(FAULT, path="s", skip=2, times=1)])
    assert met(book, "/s", "/other", "/s", "/s", "/s") == [None, None, None, 0, None]


@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.1, 0.5, 0.9]))
def test_chance_follows_from_the_seed(seed: int, share: float) -> None:
    """The same seed selects the same requests, and about the stated fraction of them."""
    paths = [f"/{number}" for number in range(2000)]
    rules = [FaultRule(FAULT, probability=share)]
    found = met(RuleBook(rules, seed), *paths)
    assert found == met(RuleBook(rules, seed), *paths)
    assert abs(found.count(0) / 2000 - share) < 0.1  # nine standard deviations


def test_a_request_that_no_rule_is_for_draws_no_chance() -> None:
    """So requests of other clients do not change which requests are selected."""
    rules = [FaultRule(FAULT, path="^/mine", probability=0.5)]
    mine = [f"/mine/{number}" for number in range(50)]
    alone, among = RuleBook(rules), RuleBook(rules)
    found = [(met(among, "/other"), met(among, path))[1][0] for path in mine]
    assert found == met(alone, *mine)


@given(rate=st.floats(1e3, 1e10), n_sharers=st.integers(1, 64), n_bytes=st.integers(1, 1 << 18))
def test_a_road_keeps_its_rate_and_is_shared_evenly(rate: float, n_sharers: int, n_bytes: int) -> None:
    """1,000 pieces of sharers that ask as soon as their last piece has passed: equal shares, and the whole rate."""
    road, n_sent, begun_s = ByteRateLimiter(), [0] * n_sharers, 1000.0
    waiting = [(begun_s, number, number) for number in range(n_sharers)]  # of those due at one time, who came first
    for turn in range(1000):
        now_s, _, number = heapq.heappop(waiting)
        heapq.heappush(waiting, (now_s + road.wait_s(n_bytes, rate, now_s), n_sharers + turn, number))
        n_sent[number] += 1
    assert max(n_sent) - min(n_sent) <= 1
    needed_s, last_s = 999 * n_bytes / rate, max(waiting)[0] - begun_s
    assert needed_s * 0.999 - 0.03 <= last_s <= needed_s * 1.001


def test_an_idle_road_saves_nothing_up() -> None:
    """After an hour without traffic the rate is what it was."""
    road = ByteRateLimiter()
    assert sum(road.wait_s(1000, 1000.0, 3600.0) for _ in range(3)) > 2.8


def test_a_gate_lets_a_second_s_worth_pass_at_once() -> None:
    """After the burst, requests pass at the rate; without a limit, all pass."""
    gate = RequestRateLimiter()
    assert [gate.admits(3.0, 100.0) for _ in range(5)] == [True, True, True, False, False]
    assert [gate.admits(3.0, 100.4), gate.admits(3.0, 100.4)] == [True, False]
    assert all(gate.admits(None, 100.4) for _ in range(100))
    assert [gate.admits(0.5, 200.0), gate.admits(0.5, 201.0), gate.admits(0.5, 202.5)] == [True, False, True]


def test_what_a_fault_does_lies_at_bytes_or_at_shares() -> None:
    """A float is a fraction, an int is bytes. At or beyond the end nothing happens; at one position a cut is last."""
    fault = Fault(stall_after=0.5, flip_at=0.5, cut_after=50, stall_s=1)
    assert body_acts(fault, 100) == [(50, BodyAct.STALL), (50, BodyAct.FLIP), (50, BodyAct.CUT)]
    assert body_acts(Fault(flip_at=0, cut_after=1), 1) == [(0, BodyAct.FLIP)]
    assert body_acts(Fault(flip_at=1.0, cut_after=7), 7) == []
    assert body_acts(Fault(cut_after=7), None) == [(7, BodyAct.CUT)]
    with pytest.raises(ValueError, match="length is not known"):
        body_acts(Fault(cut_after=0.5), None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fault(status=200), "status"),
        (lambda: Fault(cut_after=1.5), "cut_after"),
        (lambda: Fault(flip_at=-1), "flip_at"),
        (lambda: Fault(stall_s=-1), "stall_s"),
        (lambda: Fault(headers={"content-Length": "7"}), "framing"),
        (lambda: FaultRule(FAULT, path="("), "regular expression"),
        (lambda: FaultRule(FAULT, probability=2), "probability"),
        (lambda: ProxyLimits(bytes_per_s=0), "bytes_per_s"),
        (lambda: ProxyLimits(latency_s=-1), "latency_s"),
    ],
)
def test_what_cannot_be_is_refused(make: object, words: str) -> None:
    """The error comes when the value is made, not when a request arrives."""
    assert callable(make)
    with pytest.raises(OptionError, match=words):
        make()
