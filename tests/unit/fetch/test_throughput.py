"""How fast bytes come, lately."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.fetch.decide.rates import Throughput


@given(
    rate=st.floats(0, 1e9),
    pauses=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=100),
    began_s=st.floats(0, 1e5),
)
def test_a_steady_rate_is_found_whenever_it_is_noted(rate: float, pauses: list[float], began_s: float) -> None:
    """From half a second on, and before that nothing is said."""
    speed, now_s, found = Throughput(), began_s, None
    for pause in pauses:
        now_s += pause
        found = speed.bytes_per_s(int(rate * (now_s - began_s)), now_s)
        if found is not None:
            assert found == pytest.approx(rate, rel=1e-3, abs=10)
    assert (found is None) == (now_s - began_s - pauses[0] < 0.5) or now_s - began_s > 2.0


def test_what_was_long_ago_does_not_count() -> None:
    """Ten seconds of nothing, then 100 bytes a second."""
    speed, found = Throughput(), None
    for tick in range(100):
        assert not speed.bytes_per_s(0, tick / 10)
    for tick in range(30):
        found = speed.bytes_per_s(10 * tick, 10 + tick / 10)
    assert found == pytest.approx(100, rel=0.01)


def test_a_pause_in_noting_is_a_new_beginning() -> None:
    """What came meanwhile may have come at any moment of it."""
    speed = Throughput()
    speed.note(0, 0.0)
    assert speed.bytes_per_s(10**9, 60.0) is None
