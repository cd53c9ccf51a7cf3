"""A cache with a limit, with real fetchers: what lies there is never too much, and what goes is what may go."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streaming.cache.files import table_name
from streaming.cache.origin import ORIGIN_NAME, claim, origin_of
from streaming.errors import NoRoomError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest, Reason, Span
from streaming.formats.compression import compress
from streaming.testing import FaultProxy, ProxyLimits
from support.disks import bytes_in, names_in, own_disk, used_bytes, watched, write_dataset
from support.fetcher_world import as_bytes, client_of, content, run_all, temporaries, wait_until
from support.fetching import fetch_all, read_ranges, stream_config
from support.stores import fill, gets, put

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_BYTES = 100_000


def limited(remote: str | Path, local: Path, limit_bytes: int, **config: Any) -> FetchClient:
    """A client whose job has a limit."""
    streams = [stream_config(str(remote), str(local), **config)]
    return FetchClient(str(local), streams, cache_limit=limit_bytes)


def needs_of(names: Sequence[int], n_bytes: int = N_BYTES) -> list[FileRequest]:
    return [FileRequest(0, str(i), n_bytes) for i in names]


# --- never too much


@pytest.mark.parametrize("keep_zip", [None, False, True])
def test_never_more_lies_there_than_may(tmp_path: Path, store: FaultProxy, keep_zip: bool | None) -> None:
    """Temporaries and all, at any moment, while four processes read, lease and wait; compressed or not."""
    page = os.sysconf("SC_PAGE_SIZE")
    n_bytes = 25 * page
    contents = [content(f"d/{i}", n_bytes // 2) * 2 for i in range(30)]
    needs = [FileRequest(0, f"{i}", n_bytes) for i in range(30)]
    if keep_zip is None:
        put(store, {f"d/{i}": whole for i, whole in enumerate(contents)})
    else:
        zipped = [compress("zstd:3", whole) for whole in contents]
        needs = [FileRequest(0, f"{i}", n_bytes, f"{i}.z", len(zipped[i]), "zstd:3") for i in range(30)]
        put(store, {f"d/{i}.z": whole for i, whole in enumerate(zipped)})
    store.set_limits(ProxyLimits(connection_bytes_per_s=32e6))
    cache = tmp_path / "cache"
    limit = 8 * n_bytes
    with own_disk(cache, 4 * limit), limited("s3://bkt/d", cache, limit, keep_zip=bool(keep_zip)) as client:
        client.hold()
        before = used_bytes(cache)
        with watched(cache) as most:
            run_all("fork", _read_with_leases, [(client, needs, contents, seed) for seed in range(4)])
        numbers = client.status()
        assert numbers["evicted"] > 0
        assert numbers["cache_bytes"] <= limit
        assert temporaries(cache) == []
    # A file takes whole pages, which its size does not tell; and the log may have grown by one.
    n_files = 2 * limit // n_bytes + 1
    assert most[0] - before <= limit + n_files * page
    assert most[0] - before > limit // 2


def _read_with_leases(client: FetchClient, needs: Sequence[FileRequest], contents: Sequence[bytes], seed: int) -> None:
    rng = random.Random(seed)
    order = [rng.randrange(len(needs)) for _ in range(60)]
    for at, number in enumerate(order):
        ahead = [needs[i] for i in dict.fromkeys(order[at:])]
        client.announce(f"reader-{seed}", ahead, ahead[:1])
        while True:
            try:
                path = client.wait(needs[number])
            except NoRoomError:
                time.sleep(0.01)
                continue
            with contextlib.suppress(FileNotFoundError):  # gone again before it was opened: it was not leased in time
                assert Path(path).read_bytes() == contents[number]
                break


def test_a_cache_that_holds_too_much_shrinks_when_a_limit_comes(tmp_path: Path, store: FaultProxy) -> None:
    """By what nobody needs, then by what is needed last, though nothing is to be fetched."""
    fill(store, "d", 10, N_BYTES)
    needs = needs_of(range(10))
    with client_of("s3://bkt/d", tmp_path) as free:
        fetch_all(free, needs)
    write_dataset(tmp_path, needs)
    n_index = (tmp_path / "index.json").stat().st_size
    with limited("s3://bkt/d", tmp_path, 100 * N_BYTES) as reader:
        reader.announce("r", needs[5:])
        with limited("s3://bkt/d", tmp_path, 4 * N_BYTES + n_index) as other:
            other.hold()
            wait_until("it has shrunk", lambda: bytes_in(tmp_path) <= 4 * N_BYTES + n_index)
            assert names_in(tmp_path) - {"index.json"} == set("5678")
    assert gets(store).total() == 10


def test_the_smallest_limit_holds_while_its_job_lives(tmp_path: Path, store: FaultProxy) -> None:
    """Of two jobs on one cache; afterwards what is left fetches what it announced."""
    fill(store, "d", 12, N_BYTES)
    needs = needs_of(range(12))
    write_dataset(tmp_path, needs)
    n_index = (tmp_path / "index.json").stat().st_size
    with limited("s3://bkt/d", tmp_path, 10 * N_BYTES + n_index) as large:
        large.announce("r", needs)
        wait_until("ten have come", lambda: len(names_in(tmp_path)) == 11)
        with limited("s3://bkt/d", tmp_path, 3 * N_BYTES + n_index) as small:
            small.hold()
            wait_until("it has shrunk", lambda: bytes_in(tmp_path) <= 3 * N_BYTES + n_index)
            small.announce("r", needs[8:])
            wait_until("nothing moves", lambda: small.status()["moving"] == 0)
            assert bytes_in(tmp_path) <= 3 * N_BYTES + n_index
        wait_until("ten have come again", lambda: len(names_in(tmp_path)) == 11)


# --- what goes


def test_what_is_needed_last_goes_first(tmp_path: Path, store: FaultProxy) -> None:
    """Before that what no list has, the longest unused first; what is held stays."""
    fill(store, "d", 8, N_BYTES)
    with limited("s3://bkt/d", tmp_path, 5 * N_BYTES) as client:
        fetch_all(client, needs_of([0, 1, 2, 3, 4]))
        client.announce("r", needs_of([3, 1, 0]), needs_of([2]))
        client.wait(*needs_of([5]))
        assert names_in(tmp_path) == {"0", "1", "2", "3", "5"}
        client.wait(*needs_of([6]))
        assert names_in(tmp_path) == {"0", "1", "2", "3", "6"}
        client.announce("r", needs_of([3, 1, 6, 0]), needs_of([2, 3]))
        client.wait(*needs_of([7]))
        assert names_in(tmp_path) == {"1", "2", "3", "6", "7"}
        client.announce("r", (), needs_of([1, 2, 3, 6, 7]))
        with pytest.raises(NoRoomError, match=r"d/5 has no room below .*500,000 of 500,000 bytes .*raise cache_limit"):
            client.wait(*needs_of([5]))
        assert as_bytes(read_ranges(client, [Span(needs_of([5])[0], 0, 9)], Reason.NO_ROOM)) == [
            content("d/5", N_BYTES)[:9]
        ]


def test_a_list_comes_as_far_as_there_is_room(tmp_path: Path, store: FaultProxy) -> None:
    """And further when what it held is let go, without anybody asking."""
    fill(store, "d", 8, N_BYTES)
    needs = needs_of(range(8))
    with limited("s3://bkt/d", tmp_path, 3 * N_BYTES) as client:
        client.announce("r", needs, needs[:3])
        wait_until("three have come", lambda: names_in(tmp_path) == {"0", "1", "2"})
        client.announce("r", needs[2:])
        wait_until("the next have come", lambda: names_in(tmp_path) == {"2", "3", "4"})


def test_a_file_that_vanished_leaves_its_room(tmp_path: Path, store: FaultProxy) -> None:
    """Deleted by hand, while nobody says anything: the next look finds it, and read-ahead goes on."""
    fill(store, "d", 4, N_BYTES)
    needs = needs_of(range(4))
    with limited("s3://bkt/d", tmp_path, 2 * N_BYTES) as client:
        client.announce("r", needs, needs[:2])
        wait_until("two have come", lambda: names_in(tmp_path) == {"0", "1"})
        wait_until("nothing moves", lambda: client.status()["moving"] == 0)
        os.unlink(tmp_path / "0")
        wait_until("the third has come", lambda: names_in(tmp_path) == {"1", "2"})


def test_offset_tables_count(tmp_path: Path, store: FaultProxy) -> None:
    """They take the room of what nobody needs; without it they are given, and not kept."""
    fill(store, "d", 3, N_BYTES)
    needs = needs_of(range(3))
    n_table = 10_000
    with limited("s3://bkt/d", tmp_path, 2 * N_BYTES) as client:
        fetch_all(client, needs[:2])
        client.announce("r", needs[:2], needs[:2])
        for _ in range(2):
            table = read_ranges(client, [Span(needs[2], 0, n_table, keep=True)], Reason.RANDOM)
            assert as_bytes(table) == [content("d/2", N_BYTES)[:n_table]]
            wait_until("the fetcher has nothing to do", lambda: client.status()["ranges_are_idle"])
            assert names_in(tmp_path) == {"0", "1"}
        client.announce("r", needs[:1], needs[:1])
        read_ranges(client, [Span(needs[2], 0, n_table, keep=True)], Reason.RANDOM)
        wait_until("the table is kept", lambda: names_in(tmp_path) == {"0", table_name("2")})
        assert client.status()["cache_bytes"] == N_BYTES + n_table


def test_a_cache_filled_in_the_future_is_used_like_any_other(tmp_path: Path, store: FaultProxy) -> None:
    """By a machine whose clock was wrong: its files go when they must, and what is needed stays."""
    fill(store, "d", 6, N_BYTES)
    needs = needs_of(range(6))
    with client_of("s3://bkt/d", tmp_path) as free:
        fetch_all(free, needs[:4])
    write_dataset(tmp_path, needs)
    n_index = (tmp_path / "index.json").stat().st_size
    for name in "0123":
        os.utime(tmp_path / name, (time.time() + 1e8,) * 2)
    with limited("s3://bkt/d", tmp_path, 4 * N_BYTES + n_index) as client:
        client.announce("r", needs_of([4, 1, 2]))
        client.wait(needs[4])
        client.wait(needs[5])
        assert names_in(tmp_path) - {"index.json"} == {"1", "2", "4", "5"}


# --- what never goes


def test_what_is_not_ours_stays(tmp_path: Path, store: FaultProxy) -> None:
    """Files of the user beside ours, in folders of the user, and a dataset that is nowhere else; but they count."""
    fill(store, "d", 6, N_BYTES)
    cache = tmp_path / "cache"
    own = cache / "own"
    write_dataset(own, needs_of([0, 1]))
    for name in ("0", "1", "notes.txt"):
        (own / name).write_bytes(content(name, N_BYTES))
    write_dataset(cache, needs_of(range(6)))
    (cache / "my.mds").write_bytes(content("my", N_BYTES))
    (cache / "link").symlink_to(own / "0")
    n_own = bytes_in(cache)
    with limited("s3://bkt/d", cache, 2 * N_BYTES + n_own) as client:
        for need in needs_of(range(6)):
            client.wait(need)
        assert names_in(cache) == {"index.json", "my.mds", "link", "4", "5"}
        assert client.status()["cache_bytes"] == 2 * N_BYTES + n_own
    assert names_in(own) == {"index.json", "0", "1", "notes.txt"}
    with (
        limited("s3://bkt/d", cache, n_own) as client,
        pytest.raises(NoRoomError, match="in files that are no copies and stay"),
    ):
        client.wait(*needs_of([0]))
    assert names_in(own) == {"index.json", "0", "1", "notes.txt"}


def test_a_source_stays_though_it_lies_in_a_cache(tmp_path: Path, store: FaultProxy) -> None:
    """A copy of one remote that another stream reads as its source, by another name; and a cache that is its source."""
    fill(store, "d", 6, N_BYTES)
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    cache = tmp_path / "cache"
    copy, elsewhere = cache / "copy", tmp_path / "link"
    write_dataset(copy, needs_of(range(4)))
    for i in range(4):
        (copy / str(i)).write_bytes(content(f"d/{i}", N_BYTES))
    claim(str(copy), origin_of("s3://bkt/d", "s3://bkt/d"))
    elsewhere.symlink_to(copy)
    before = names_in(copy)
    streams = [
        stream_config("s3://bkt/d", str(cache / "d"), root=str(cache)),
        stream_config(str(elsewhere), str(cache / "second"), root=str(cache)),
        stream_config(str(copy), str(copy), root=str(cache)),
    ]
    with FetchClient(str(cache), streams, cache_limit=bytes_in(cache) + 2 * N_BYTES) as client:
        for i in range(6):
            client.wait(FileRequest(0, str(i), N_BYTES))
        client.wait(FileRequest(1, "0", N_BYTES))
        assert client.status()["evicted"] == 5
    assert names_in(copy) == before


def test_a_folder_filled_by_another_loader_gives_way_while_a_job_uses_it(tmp_path: Path, store: FaultProxy) -> None:
    """It has our index but no mark of ours: it is a cache because a job says so, not for ever."""
    fill(store, "d", 4, N_BYTES)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_dataset(theirs, needs_of(range(4)))
    for i in range(4):
        (theirs / str(i)).write_bytes(content(f"d/{i}", N_BYTES))
    assert ORIGIN_NAME not in names_in(theirs)
    n_theirs = bytes_in(theirs)

    def client_in(*folders: Path) -> FetchClient:
        streams = [stream_config("s3://bkt/d", str(folder), root=str(tmp_path)) for folder in folders]
        return FetchClient(str(tmp_path), streams, cache_limit=n_theirs + N_BYTES)

    with client_in(ours) as client:
        for need in needs_of(range(2)):
            client.wait(need)
        assert (names_in(ours), len(names_in(theirs))) == ({"1"}, 5)
    with client_in(theirs, ours) as client:
        client.announce("r", [FileRequest(1, "2", N_BYTES), FileRequest(1, "1", N_BYTES)])
        client.wait(FileRequest(1, "2", N_BYTES))
        assert (names_in(ours), len(names_in(theirs))) == ({"1", "2"}, 4)
