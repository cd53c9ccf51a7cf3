"""Time-outs."""

from __future__ import annotations

from streaming.storage.common.transport import read_timeout_s


def test_a_stall_costs_one_attempt_of_several() -> None:
    """A request gets a quarter of the whole time, but at least 10 s of it."""
    assert [read_timeout_s(t) for t in (1, 10, 20, 60, 400)] == [1, 10, 10, 15, 100]
