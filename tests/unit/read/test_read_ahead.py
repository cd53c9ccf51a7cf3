"""What a reader announces: what is missing, in order of first use, and no more often than it must."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from streaming.fetch.client import FetchClient
from streaming.fetch.wire import START, FileRequest
from streaming.formats.index import INDEX_NAME, dump_index, parse_index
from streaming.read.epoch.read_ahead import MAX_ANNOUNCED, ListRules, ReadAhead
from streaming.read.shards.files import ShardFiles
from streaming.read.streams.indexes import StreamFiles
from streaming.read.streams.location import StreamLocation
from streaming.read.telemetry.counters import SharedCounters
from streaming.storage.url import parse_remote
from support.fetching import stream_config

N_SHARDS = 10_000
ROWS = 10
RARELY = ListRules(MAX_ANNOUNCED, 1 << 40)


class Recorder(FetchClient):
    """A client that notes what is announced instead of sending it."""

    def __init__(self, cache: str) -> None:
        super().__init__(cache, [stream_config(remote="/nowhere", local=cache)])
        self.lists: list[list[str]] = []
        self.held: list[set[str]] = []
        self.n_dropped = 0

    def announce(self, reader: str, files: Sequence[FileRequest], held: Sequence[FileRequest] = ()) -> None:
        if reader == START:
            assert not files
            self.n_dropped += 1
            return
        self.lists.append([file.name for file in files])
        self.held.append({file.name for file in held})


@pytest.fixture(scope="module")
def entries() -> bytes:
    """An index of many small shards."""
    return dump_index(
        {
            "column_encodings": ["int"],
            "column_names": ["x"],
            "column_sizes": [8],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "raw_data": {"basename": f"shard.{number:05}.mds", "bytes": 500, "hashes": {}},
            "samples": ROWS,
            "size_limit": 500,
            "version": 2,
            "zip_data": None,
        }
        for number in range(N_SHARDS)
    )


@pytest.fixture
def world(tmp_path: Path, entries: bytes) -> tuple[Recorder, ShardFiles, Path]:
    cache = tmp_path / "cache"
    cache.mkdir()
    remote = parse_remote("/nowhere")
    location = StreamLocation("stream 0", None, remote, str(cache), False, str(cache), 2, 60.0, None, False)
    client = Recorder(str(cache))
    stream = StreamFiles(0, location, parse_index(entries, where=INDEX_NAME))
    return client, ShardFiles([stream], client, SharedCounters(1)), cache


def _names(shards: Sequence[int]) -> list[str]:
    return [f"shard.{shard:05}.mds" for shard in shards]


def _place(cache: Path, shards: Sequence[int]) -> None:
    for name in _names(shards):
        (cache / name).touch()


def _stored_order(position: int, limit: int) -> tuple[list[int], list[int]]:
    """A node that reads shard after shard, epoch after epoch."""
    first = position // ROWS
    this = list(range(first, min(first + limit, N_SHARDS)))
    return this, list(range(limit - len(this)))


def test_a_list_holds_what_is_missing_and_is_renewed_when_half_is_used(
    world: tuple[Recorder, ShardFiles, Path],
) -> None:
    """At most 1,024 shards, on into the next epoch; between renewals nothing is announced."""
    client, files, cache = world
    _place(cache, range(0, 300, 3))
    ahead = ReadAhead(client, files, "0.0", _stored_order, ListRules.unlimited(ROWS))
    for shard in range(N_SHARDS):
        ahead.advance([shard], shard * ROWS, shard * ROWS)
        _place(cache, [shard])
    missing = [shard for shard in range(N_SHARDS) if shard >= 300 or shard % 3]
    assert client.lists[0] == _names(missing[:MAX_ANNOUNCED])
    assert all(len(names) <= MAX_ANNOUNCED for names in client.lists)
    assert N_SHARDS // MAX_ANNOUNCED <= len(client.lists) <= 2 * N_SHARDS // MAX_ANNOUNCED + 2
    announced = {name for names in client.lists for name in names}
    assert announced == set(_names(missing))


def test_nothing_is_announced_when_all_is_on_disk(world: tuple[Recorder, ShardFiles, Path]) -> None:
    """A warm epoch sends no message."""
    client, files, cache = world
    _place(cache, range(N_SHARDS))
    ahead = ReadAhead(client, files, "0.0", _stored_order, ListRules.unlimited(ROWS))
    for shard in range(N_SHARDS):
        ahead.advance([shard], shard * ROWS, shard * ROWS)
    assert client.lists == []


def test_planned_and_missing_shards_are_announced_first(world: tuple[Recorder, ShardFiles, Path]) -> None:
    """Exact plans come before estimates, and a shard that was not foreseen renews the list at once."""
    client, files, _ = world
    ahead = ReadAhead(client, files, "0.0", _stored_order, RARELY)
    ahead.advance([7, 5], 0, 0)
    assert client.lists[-1][:4] == _names([7, 5, 0, 1])
    ahead.advance([9_000], 10, 10)
    assert client.lists[-1][:2] == _names([9_000, 1])
    assert len(client.lists) == 2


def test_without_a_horizon_only_the_plan_is_announced(world: tuple[Recorder, ShardFiles, Path]) -> None:
    """`predownload` says how far ahead; nothing beyond is fetched."""
    client, files, cache = world
    ahead = ReadAhead(client, files, "0.0", None, RARELY)
    ahead.advance([3, 4], 0, 0)
    ahead.advance([4], 10, 10)
    _place(cache, [3, 4])
    ahead.advance([4, 5], 20, 20)
    assert client.lists == [_names([3, 4]), _names([5])]


def test_a_vanished_file_is_announced_again_once_it_is_noticed(world: tuple[Recorder, ShardFiles, Path]) -> None:
    """A shard that was seen on disk is not looked for again until opening it fails."""
    client, files, cache = world
    _place(cache, range(N_SHARDS))
    ahead = ReadAhead(client, files, "0.0", _stored_order, RARELY)
    ahead.advance([0], 0, 0)
    os.unlink(cache / "shard.00001.mds")
    ahead.advance([1], 10, 10)
    assert client.lists == []
    assert files._try_open(str(cache), "shard.00001.mds", 1, is_ours=True) is None
    ahead.advance([1], 10, 10)
    assert client.lists == [_names([1])]


# --- under a limit


LIMITED = ListRules.limited(cache_shards=100, needed_shards=40, positions_per_shard=ROWS)


def _announced(client: Recorder) -> list[int]:
    return [int(name.split(".")[1]) for name in client.lists[-1]]


def test_under_a_limit_a_list_names_shards_on_disk_too_and_no_more_than_fits(
    world: tuple[Recorder, ShardFiles, Path],
) -> None:
    """What is needed at once, what is on disk, and what comes next: all of it fits at the same time."""
    client, files, cache = world
    _place(cache, range(30))
    _place(cache, range(9_000, 9_020))  # used before, and once more at the end

    def horizon(position: int, limit: int) -> tuple[list[int], list[int]]:
        return [*_stored_order(position, limit)[0], *range(9_000, 9_020)], []

    ahead = ReadAhead(client, files, "0.0", horizon, LIMITED)
    ahead.advance([0, 1, 2], 0, 30)
    named = _announced(client)
    assert LIMITED.room is not None
    assert len(named) == LIMITED.room
    assert set(named) >= {*range(30), *range(9_000, 9_020)}
    fetched = [shard for shard in named if shard >= 30 and shard < 9_000]
    assert fetched == list(range(30, 30 + len(fetched)))
    assert named.index(9_019) < named.index(fetched[0])  # it must not be evicted for what is fetched ahead


def test_under_a_limit_a_list_is_renewed_while_most_of_its_room_is_still_needed(
    world: tuple[Recorder, ShardFiles, Path],
) -> None:
    """At the latest when an eighth of the cache has been consumed; not at every step over the same shards."""
    client, files, _ = world
    ahead = ReadAhead(client, files, "0.0", _stored_order, LIMITED)
    for position in range(500 * ROWS):
        first = position // ROWS // 10 * 10  # in use: ten shards at a time
        ahead.advance(list(range(first, first + 10)), position, position + 1)
    consumed = 100 / 8
    assert 500 / consumed <= len(client.lists) <= 500 / consumed + 500 / 10 + 1
    assert client.n_dropped == 1


def test_planned_and_open_shards_are_held_up_to_half_the_cache(world: tuple[Recorder, ShardFiles, Path]) -> None:
    """A reader must not hold so much that others have no room; one that finds no room lets go of everything."""
    client, files, _ = world
    ahead = ReadAhead(client, files, "0.0", _stored_order, LIMITED)
    ahead.advance(list(range(200)), 0, 2000, opened=[300])
    assert client.held[-1] == set(_names([*range(50), 300]))
    ahead.let_go()
    assert client.held[-1] == set()
    assert client.lists[-1] == client.lists[-2]
    ahead.let_go()
    assert len(client.lists) == 2


def test_in_a_cache_that_is_too_small_nothing_is_held(world: tuple[Recorder, ShardFiles, Path]) -> None:
    """Not all shards in use at once fit, so each reader could take the whole cache."""
    client, files, _ = world
    ahead = ReadAhead(client, files, "0.0", _stored_order, ListRules.limited(20, 40, ROWS))
    ahead.advance(list(range(30)), 0, 300, opened=[0, 1])
    assert client.held == [set()]


def test_of_the_next_epoch_only_a_beginning_is_fetched(world: tuple[Recorder, ShardFiles, Path]) -> None:
    """Its first batches wait for nothing; of its other shards those on disk stay, as far as there is room."""
    client, files, cache = world
    _place(cache, [*range(9_990, 10_000), 5, 70])
    ahead = ReadAhead(client, files, "0.0", lambda *_: (list(range(9_990, 10_000)), list(range(100))), LIMITED)
    ahead.advance([9_990], 9_990 * ROWS, 9_991 * ROWS)
    assert set(_announced(client)) == {*range(9_990, 10_000), *range(LIMITED.room // 16), 5, 70}  # type: ignore[operator]


def test_sparse_shards_are_not_announced(world: tuple[Recorder, ShardFiles, Path]) -> None:
    """Their samples come by range; the other planned shards are announced as ever."""
    client, files, _ = world
    sparse = np.zeros(N_SHARDS, np.bool_)
    sparse[[3, 5]] = True
    ahead = ReadAhead(client, files, "0.0", None, RARELY, sparse=sparse)
    assert not ahead.advance([3, 4, 5, 6], 0, 40)
    assert client.lists == [_names([4, 6])]
