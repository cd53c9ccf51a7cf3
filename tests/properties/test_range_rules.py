"""Laws of what comes by range, and what waits for its shard."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.fetch.decide.ranges import (
    FileFacts,
    RangeBudget,
    RangeRules,
    Verdict,
    decide,
    free_samples,
    joined,
)
from streaming.fetch.wire.protocol import RangeAsk, Reason

RULES = RangeRules(per_s=10.0, burst=20.0, gap_bytes=5, longest_bytes=30, whole_share=0.5, whole_ranges=7)
DEFAULT = RangeRules()
SPANS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 40)).map(lambda at: (at[0], at[0] + at[1])), max_size=12)


@settings(max_examples=1000)
@given(SPANS)
def test_each_span_is_in_the_one_request_that_says_so(spans: list[tuple[int, int]]) -> None:
    """No request is longer than it may be unless a single span is, and none has bytes at its ends that nobody wants."""
    requests = joined(spans, RULES)
    assert sorted(member for request in requests for member in request.members) == list(range(len(spans)))
    for request in requests:
        members = [spans[member] for member in request.members]
        assert (request.begin, request.end) == (min(begin for begin, _ in members), max(end for _, end in members))
        assert request.end - request.begin <= max(RULES.longest_bytes, *(end - begin for begin, end in members))


@settings(max_examples=1000)
@given(SPANS)
def test_what_lies_close_is_joined_and_nothing_else(spans: list[tuple[int, int]]) -> None:
    """Inside a request no gap reaches the limit; between requests one does, or they would be too long together."""
    requests = joined(spans, RULES)
    for request in requests:
        end = request.begin
        for begin, stop in sorted(spans[member] for member in request.members):
            assert begin - end < RULES.gap_bytes
            end = max(end, stop)
    for one, two in itertools.pairwise(requests):
        next_end = min(spans[member] for member in two.members)[1]
        too_far = two.begin - one.end >= RULES.gap_bytes
        assert too_far or max(one.end, next_end) - one.begin > RULES.longest_bytes


REASONS = st.sampled_from(list(Reason))


@settings(max_examples=1000)
@given(st.lists(st.tuples(st.integers(0, 90), st.floats(0, 5), REASONS), max_size=30))
def test_the_budget_is_kept(asked: list[tuple[int, float, Reason]]) -> None:
    """In no stretch of time go more than the burst and what the rate gives; nobody waits longer than the rate demands.

    Late samples that would wait longer than for their shard are refused, and spend nothing.
    """
    budget, plain_tokens, now_s = RangeBudget[str](RULES, 0.0), RULES.burst, 0.0
    went: list[tuple[float, int]] = []
    for n_requests, passed_s, reason in asked:
        now_s += passed_s
        plain_tokens = min(RULES.burst, plain_tokens + passed_s * RULES.per_s)
        needed_s = max(0.0, (n_requests - plain_tokens) / RULES.per_s)
        wait_s = budget.spend(n_requests, now_s, reason=reason)
        if abs(needed_s - RULES.late_waits_s) > 1e-9:  # else the last bit decides
            assert (wait_s is None) == (reason is Reason.AHEAD and needed_s > RULES.late_waits_s)
        if wait_s is not None:
            assert abs(wait_s - needed_s) < 1e-6
            plain_tokens -= n_requests
            went.append((now_s + wait_s, n_requests))
    for i, (begin_s, _) in enumerate(went):
        for j in range(i, len(went)):
            segment_s = went[j][0] - begin_s
            assert sum(n for _, n in went[i : j + 1]) <= RULES.burst + segment_s * RULES.per_s + went[i][1] + 1e-6


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30), st.integers(1, 3), REASONS), max_size=30),
    st.sampled_from([-1, 10, 60]),
)
def test_a_file_is_wanted_whole_once_for_each_time_that_much_of_it_was_asked(
    asked: list[tuple[str, int, int, Reason]], n_file_bytes: int
) -> None:
    """Half of its bytes, if its size is known, or so many ranges; of each file by itself, by random access or few."""
    budget, counted = RangeBudget[str](RULES, 0.0), {"a": (0, 0), "b": (0, 0)}
    for name, n_bytes, n_ranges, reason in asked:
        if reason in (Reason.RANDOM, Reason.FEW):
            counted[name] = (counted[name][0] + n_bytes, counted[name][1] + n_ranges)
        is_much = counted[name][1] >= 7 or (n_file_bytes >= 0 and counted[name][0] >= n_file_bytes / 2)
        is_much &= reason in (Reason.RANDOM, Reason.FEW)
        assert budget.is_much(name, n_file_bytes, n_bytes, n_ranges, reason=reason) == is_much
        if is_much:
            counted[name] = (0, 0)


def test_a_clock_that_goes_back_gives_nothing_twice() -> None:
    """The same second is counted once."""
    budget = RangeBudget[str](replace(RULES, late_waits_s=0.0), 0.0)
    assert budget.spend(20, 100.0, reason=Reason.AHEAD) == 0.0
    assert budget.spend(1, 50.0, reason=Reason.AHEAD) is None
    assert budget.spend(1, 100.0, reason=Reason.AHEAD) is None
    assert budget.spend(1, 100.25, reason=Reason.AHEAD) == 0.0


# --- by range, or wait for the shard?

ASKS = st.builds(
    RangeAsk,
    REASONS,
    due_s=st.floats(-10, 100),
    n_samples=st.integers(0, 300),
    n_steps=st.integers(0, 20),
    first=st.integers(0, 10_000),
    stop=st.integers(10_000, 10_300),
    n_free=st.sampled_from([0, 64, 20_000]),
    n_late=st.integers(0, 200),
    training_bytes_per_s=st.none() | st.floats(1, 1e9),
)
SPEEDS = st.none() | st.floats(0, 1e9)
LEFT = st.floats(0, 200) | st.just(float("inf"))


@settings(max_examples=1000)
@given(ASKS, SPEEDS, LEFT)
def test_a_file_on_disk_is_read_there_and_no_other_is(ask: RangeAsk, speed: float | None, left_s: float) -> None:
    """Whatever the reason."""
    assert decide(ask, FileFacts(True, left_s), speed, DEFAULT) is Verdict.ON_DISK
    assert decide(ask, FileFacts(False, left_s), speed, DEFAULT) is not Verdict.ON_DISK


@settings(max_examples=1000)
@given(ASKS, SPEEDS, LEFT)
def test_only_late_samples_and_walks_wait_for_the_shard(ask: RangeAsk, speed: float | None, left_s: float) -> None:
    """A reader that cannot have the shard, or needs hardly any of it, is never sent to wait for it."""
    if decide(ask, FileFacts(False, left_s), speed, DEFAULT) is Verdict.WAIT:
        assert ask.reason is Reason.AHEAD or (ask.reason is Reason.RANDOM and ask.n_steps >= DEFAULT.walk_steps)


@settings(max_examples=1000)
@given(ASKS, SPEEDS, LEFT)
def test_what_a_reader_does_not_ask_would_have_been_refused(ask: RangeAsk, speed: float | None, left_s: float) -> None:
    """A reader asks the same decision before it asks the fetcher, with the best that the fetcher could know."""
    if decide(ask, FileFacts(False), float("inf"), DEFAULT) is Verdict.WAIT:
        assert decide(ask, FileFacts(False, left_s), speed, DEFAULT) is Verdict.WAIT


@settings(max_examples=1000)
@given(ASKS, SPEEDS, SPEEDS, LEFT, LEFT)
def test_a_sooner_shard_or_a_slower_store_never_grants_more(
    ask: RangeAsk, speed: float | None, other: float | None, left_s: float, other_left_s: float
) -> None:
    """Bridging pays where files come faster than training consumes samples, and where the shard is late."""
    slow, fast = sorted([speed or 0.0, other or 0.0])
    soon_s, late_s = sorted([left_s, other_left_s])
    if decide(ask, FileFacts(False, soon_s), slow, DEFAULT) in (Verdict.GRANT, Verdict.BRIDGE):
        assert decide(ask, FileFacts(False, late_s), fast, DEFAULT) in (Verdict.GRANT, Verdict.BRIDGE)


@settings(max_examples=300)
@given(
    batch_size=st.integers(1, 300),
    n_workers=st.integers(1, 9),
    worker=st.integers(0, 8),
    missing=st.lists(st.floats(0, 1), min_size=1, max_size=60),
)
def test_a_reader_gets_its_first_batches_and_then_one_per_cent(
    batch_size: int, n_workers: int, worker: int, missing: list[float]
) -> None:
    """However many of its samples are late; segments of which not all can come are waited for."""
    worker %= n_workers
    n_free = free_samples(batch_size, worker, n_workers, DEFAULT)
    n_late, first = 0, 0
    for share in missing:
        n_samples = round(share * batch_size)
        ask = RangeAsk(
            Reason.AHEAD, 0.0, n_samples=n_samples, first=first, stop=first + batch_size, n_free=n_free, n_late=n_late
        )
        verdict = decide(ask, FileFacts(False), None, DEFAULT)
        if first < n_free:
            assert verdict is Verdict.GRANT
        elif verdict is Verdict.GRANT:
            n_late += n_samples
        assert n_late <= max(0, (first + batch_size - n_free) // 100)
        first += batch_size
    assert sum(free_samples(batch_size, each, n_workers, DEFAULT) for each in range(n_workers)) == 4 * batch_size
