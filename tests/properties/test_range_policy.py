"""Laws of what is fetched without its file."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.fetch.decide.ranges import RangeBudget, RangeRules, joined

LIMITS = RangeRules(per_s=10.0, burst=20.0, gap_bytes=5, longest_bytes=30, whole_share=0.5, whole_ranges=7)
SPANS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 40)).map(lambda at: (at[0], at[0] + at[1])), max_size=12)


@settings(max_examples=1000, deadline=None)
@given(SPANS)
def test_each_span_is_in_the_one_request_that_says_so(spans: list[tuple[int, int]]) -> None:
    """No request is longer than it may be unless a single span is, and none has bytes at its ends that nobody wants."""
    requests = joined(spans, LIMITS)
    assert sorted(member for request in requests for member in request.members) == list(range(len(spans)))
    for request in requests:
        members = [spans[member] for member in request.members]
        assert (request.begin, request.end) == (min(begin for begin, _ in members), max(end for _, end in members))
        assert request.end - request.begin <= max(LIMITS.longest_bytes, *(end - begin for begin, end in members))


@settings(max_examples=1000, deadline=None)
@given(SPANS)
def test_what_lies_close_is_joined_and_nothing_else(spans: list[tuple[int, int]]) -> None:
    """Inside a request no gap reaches the limit; between requests one does, or they would be too long together."""
    requests = joined(spans, LIMITS)
    for request in requests:
        end = request.begin
        for begin, stop in sorted(spans[member] for member in request.members):
            assert begin - end < LIMITS.gap_bytes
            end = max(end, stop)
    for one, two in itertools.pairwise(requests):
        next_end = min(spans[member] for member in two.members)[1]
        too_far = two.begin - one.end >= LIMITS.gap_bytes
        assert too_far or max(one.end, next_end) - one.begin > LIMITS.longest_bytes


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 5), st.sampled_from([0.0, 1.0, float("inf")])), max_size=30))
def test_the_budget_is_kept(asked: list[tuple[int, float, float]]) -> None:
    """In no stretch of time go more than the burst and what the rate gives; nobody waits longer than the rate demands,
    or than he would; who is refused spends nothing.
    """
    policy, plain_tokens, now_s = RangeBudget[str](LIMITS, 0.0), LIMITS.burst, 0.0
    went: list[tuple[float, int]] = []
    for n_requests, passed_s, longest_s in asked:
        now_s += passed_s
        plain_tokens = min(LIMITS.burst, plain_tokens + passed_s * LIMITS.per_s)
        needed_s = max(0.0, (n_requests - plain_tokens) / LIMITS.per_s)
        wait_s = policy.spend(n_requests, now_s, longest_s=longest_s)
        if abs(needed_s - longest_s) > 1e-9:  # else the last bit decides
            assert (wait_s is None) == (needed_s > longest_s)
        if wait_s is not None:
            assert abs(wait_s - needed_s) < 1e-6
            plain_tokens -= n_requests
            went.append((now_s + wait_s, n_requests))
    for i, (begin_s, _) in enumerate(went):
        for j in range(i, len(went)):
            stretch_s = went[j][0] - begin_s
            assert sum(n for _, n in went[i : j + 1]) <= LIMITS.burst + stretch_s * LIMITS.per_s + went[i][1] + 1e-6


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30), st.integers(1, 3)), max_size=30),
    st.sampled_from([-1, 10, 60]),
)
def test_a_file_is_wanted_whole_once_for_each_time_that_much_of_it_was_asked(
    asked: list[tuple[str, int, int]], n_file_bytes: int
) -> None:
    """Half of its bytes, if its size is known, or so many ranges; of each file by itself."""
    policy, counted = RangeBudget[str](LIMITS, 0.0), {"a": (0, 0), "b": (0, 0)}
    for name, n_bytes, n_ranges in asked:
        counted[name] = (counted[name][0] + n_bytes, counted[name][1] + n_ranges)
        is_much = counted[name][1] >= 7 or (n_file_bytes >= 0 and counted[name][0] >= n_file_bytes / 2)
        assert policy.asked(name, n_file_bytes, n_bytes, n_ranges) == is_much
        if is_much:
            counted[name] = (0, 0)


def test_a_clock_that_goes_back_gives_nothing_twice() -> None:
    """The same second is counted once."""
    policy = RangeBudget[str](LIMITS, 0.0)
    assert policy.spend(20, 100.0, longest_s=0.0) == 0.0
    assert policy.spend(1, 50.0, longest_s=0.0) is None
    assert policy.spend(1, 100.0, longest_s=0.0) is None
    assert policy.spend(1, 100.25, longest_s=0.0) == 0.0
