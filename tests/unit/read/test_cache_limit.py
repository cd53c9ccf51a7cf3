"""What a limit on the cache means for a node that needs more, or less."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming.order import WorkingSet
from streaming.read.streams.cache_limit import CacheRoom

MIB = 1 << 20


def _room(shards: float, *, in_use: float = 40, needed: float = 80) -> CacheRoom:
    return CacheRoom(int(shards * 64 * MIB) + MIB, MIB, 64 * MIB, WorkingSet(in_use, needed, 100, 50))


@given(st.floats(1, 1000))
def test_advice_is_given_below_what_is_needed_and_only_there(shards: float) -> None:
    """It names both sizes, and what to expect."""
    room = _room(shards)
    assert (room.advice is not None) == room.is_tight == (room.shards < 80)
    if room.advice is not None:
        assert "5.0 GiB" in room.advice
        assert "fetches of each shard" in room.advice


def test_what_is_no_shard_takes_space_too() -> None:
    """A large index leaves less space for shards, at worst none."""
    assert _room(10).shards == 10
    assert CacheRoom(10 * MIB, 20 * MIB, 64 * MIB, WorkingSet(1, 1, 1, 1)).shards == 0


def test_fetches_grow_as_space_shrinks() -> None:
    """Each shard is fetched once where there is enough."""
    fetches = [_room(shards).fetches_per_shard for shards in (100, 40, 30, 20, 10, 2)]
    assert fetches[:2] == [1, 1]
    assert fetches == sorted(fetches)
    assert fetches[-1] < 50
