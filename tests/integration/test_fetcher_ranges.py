"""Bytes of files that are not on disk."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from streaming.cache.files import table_name
from streaming.errors import FetchError, StorageError, TransferDamagedError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest, RangeAsk, Reason, Span
from streaming.testing import Fault, FaultProxy, FaultRule, ProxyLimits
from support.fetcher_world import as_bytes, client_of, content, run_all, wait_until
from support.fetching import read_ranges
from support.stores import fill, gets, put, ranges

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_BYTES = 2_000_000
KIB = 1 << 10


def needs_of(n: int, n_bytes: int = N_BYTES) -> list[FileRequest]:
    return [FileRequest(0, str(i), n_bytes) for i in range(n)]


@pytest.mark.parametrize("reason", list(Reason))
def test_all_spans_come_right(tmp_path: Path, store: FaultProxy, reason: Reason) -> None:
    """Of many files at once, in any order, overlapping or equal, at the ends; for every reason."""
    contents = fill(store, "d", 8, N_BYTES)
    rng = random.Random(1)
    spans = []
    for need in needs_of(8):
        spans += [Span(need, 0, 1), Span(need, N_BYTES - 1, N_BYTES), Span(need, 5, 50), Span(need, 5, 50)]
        spans += [Span(need, at := rng.randrange(N_BYTES - 9), at + rng.randint(1, 9)) for _ in range(12)]
    rng.shuffle(spans)
    with client_of("s3://bkt/d", tmp_path) as client:
        parts = read_ranges(client, spans, reason)
    assert as_bytes(parts) == [contents[int(span.file.name)][span.begin : span.end] for span in spans]
    assert len(ranges(store)) < len(spans)
    if reason not in (Reason.RANDOM, Reason.FEW):  # of which these make whole files come, too
        assert gets(store).total() == len(ranges(store))


def test_ranges_that_lie_close_are_one_request(tmp_path: Path, store: FaultProxy) -> None:
    """Less than 256 KiB apart; each file by itself. They are counted by their reason."""
    fill(store, "d", 2, N_BYTES)
    one, two = needs_of(2)
    close = [Span(one, at * 200 * KIB, at * 200 * KIB + 10) for at in range(4)]
    far = [Span(two, 0, 10), Span(two, 10 + 256 * KIB, 20 + 256 * KIB)]
    with client_of("s3://bkt/d", tmp_path) as client:
        read_ranges(client, [*close, *far], Reason.FEW)
        assert Counter(key for key, _ in ranges(store)) == {"d/0": 1, "d/1": 2}
        counted = client.status()["remotes"]["s3://bkt/d"]
        assert counted["ranges_few"] == 3
        assert counted["range_bytes"] == counted["bytes"] == 600 * KIB + 10 + 20


def test_an_offset_table_is_kept_for_all(tmp_path: Path, store: FaultProxy) -> None:
    """Beside the place of its file, in a folder of its own if need be; another process finds it there."""
    whole = content("shard", N_BYTES)
    put(store, {"d/sub/shard.mds": whole})
    need = FileRequest(0, "sub/shard.mds", N_BYTES)
    with client_of("s3://bkt/d", tmp_path) as client:
        assert as_bytes(read_ranges(client, [Span(need, 0, 400, keep=True)], Reason.RANDOM)) == [whole[:400]]
        wait_until("it is kept", (tmp_path / table_name(need.name)).exists)
        assert (tmp_path / table_name(need.name)).read_bytes() == whole[:400]
        run_all("spawn", _read_table, [(client, need, whole[:400])])
        assert len(ranges(store)) == 1


def _read_table(client: FetchClient, need: FileRequest, expected: bytes) -> None:
    assert as_bytes(read_ranges(client, [Span(need, 0, len(expected), keep=True)], Reason.RANDOM)) == [expected]


def test_a_file_that_is_there_or_nearly_is_waited_for(tmp_path: Path, store: FaultProxy) -> None:
    """Nothing is given of what lies on disk; of what moves, ahead of need, only if it would come later than needed."""
    fill(store, "d", 2, N_BYTES)
    there, coming = needs_of(2)
    with client_of("s3://bkt/d", tmp_path) as client:
        client.wait(there)
        store.set_limits(ProxyLimits(connection_bytes_per_s=200e3))
        client.announce("r", [coming])
        wait_until("some of it has come", lambda: client.status()["moving_bytes"] > 0)
        spans = [Span(there, 0, 9), Span(coming, 0, 9)]
        assert as_bytes(read_ranges(client, spans, Reason.AHEAD, due_s=1000.0)) == [None, None]
        assert as_bytes(read_ranges(client, spans, Reason.AHEAD, due_s=0.0)) == [None, content("d/1", N_BYTES)[:9]]
        assert as_bytes(read_ranges(client, spans, Reason.RANDOM, due_s=1000.0)) == [None, content("d/1", N_BYTES)[:9]]


def test_who_reads_ahead_too_much_is_refused(tmp_path: Path, store: FaultProxy) -> None:
    """All of what was asked for at once, or none; a refusal costs nothing."""
    n = 4000  # of which the budget has 2,048, and 5 seconds more
    needs = [FileRequest(0, f"{i}", 100) for i in range(n)]
    put(store, {f"d/{i}": bytes(100) for i in range(n)})
    with client_of("s3://bkt/d", tmp_path) as client:
        assert set(as_bytes(read_ranges(client, [Span(need, 0, 9) for need in needs], Reason.AHEAD))) == {None}
        assert gets(store).total() == 0
        some = [Span(need, 0, 9) for need in needs[:100]]
        assert as_bytes(read_ranges(client, some, Reason.AHEAD)) == [bytes(9)] * 100


@pytest.mark.parametrize("reason", [Reason.RANDOM, Reason.FEW])
def test_a_file_of_which_much_is_read_comes_whole(tmp_path: Path, store: FaultProxy, reason: Reason) -> None:
    """After half of its bytes, while ranges go on; when it was deleted, again after as much."""
    (whole,) = fill(store, "d", 1, N_BYTES)
    (need,) = needs_of(1)
    n_half = N_BYTES // 2
    with client_of("s3://bkt/d", tmp_path) as client:
        for _ in range(2):
            assert as_bytes(read_ranges(client, [Span(need, 0, n_half - 1)], reason)) == [whole[: n_half - 1]]
            assert not (tmp_path / "0").exists()
            assert as_bytes(read_ranges(client, [Span(need, 7, 8)], reason)) == [whole[7:8]]
            wait_until("it has come", lambda: client.is_present(need))
            wait_until("and is known to", lambda: client.status()["moving"] == 0)
            assert as_bytes(read_ranges(client, [Span(need, 7, 8)], reason)) == [None]
            os.unlink(tmp_path / "0")
    assert gets(store)["d/0"] - len(ranges(store)) == 2
    with client_of("s3://bkt/d", tmp_path) as client:
        read_ranges(client, [Span(need, 0, N_BYTES)], Reason.AHEAD)
        read_ranges(client, [Span(need, 0, N_BYTES)], Reason.NO_ROOM)
        read_ranges(client, [Span(FileRequest(0, "0", -1), 0, 9)], Reason.RANDOM)
        assert client.status()["known"] == 0


def test_what_is_not_the_object_of_the_index_is_an_error(tmp_path: Path, store: FaultProxy) -> None:
    """Of another size; replaced since its first bytes came, once, and then taken as it is; cut; changed in between."""
    fill(store, "d", 3, 1000)
    other, replaced, cut = needs_of(3, 1000)
    with client_of("s3://bkt/d", tmp_path) as client:
        with pytest.raises(TransferDamagedError, match=r"d/0 has 1000 bytes in the store; the index states 999"):
            read_ranges(client, [Span(replace(other, n_bytes=999), 0, 9)], Reason.RANDOM)
        read_ranges(client, [Span(replaced, 0, 9)], Reason.RANDOM)
        put(store, {"d/1": bytes(1000)})
        with pytest.raises(TransferDamagedError, match=r"d/1.*changed"):
            read_ranges(client, [Span(replaced, 0, 9)], Reason.RANDOM)
        assert as_bytes(read_ranges(client, [Span(replaced, 0, 9)], Reason.RANDOM)) == [bytes(9)]
        store.set_rules(FaultRule(Fault(cut_after=3), path="d/2", times=1))
        assert as_bytes(read_ranges(client, [Span(cut, 0, 9)], Reason.RANDOM)) == [content("d/2", 1000)[:9]]
        store.set_rules(FaultRule(Fault(cut_after=3), path="d/2", times=2))
        with pytest.raises(TransferDamagedError, match="d/2"):
            read_ranges(client, [Span(cut, 0, 9)], Reason.RANDOM)


def test_what_cannot_be_read_by_parts_is_refused(tmp_path: Path, store: FaultProxy) -> None:
    """A compressed file; more than one answer can hold."""
    zipped = FileRequest(0, "0", 100, "0.z", 50, "zstd")
    large = FileRequest(0, "1", 1 << 30)
    with client_of("s3://bkt/d", tmp_path) as client:
        with pytest.raises(StorageError, match="compressed"):
            read_ranges(client, [Span(zipped, 0, 9)], Reason.RANDOM)
        with pytest.raises(FetchError, match="1 GiB is the limit"):
            read_ranges(client, [Span(large, 0, 1 << 30), Span(large, 0, 1)], Reason.RANDOM)


def test_ranges_that_were_begun_survive_the_fetcher(tmp_path: Path, store: FaultProxy) -> None:
    """Killed in between it is started again, and what was begun is asked for again; what came at once is at hand."""
    (whole,) = fill(store, "d", 1, N_BYTES)
    (need,) = needs_of(1)
    with client_of("s3://bkt/d", tmp_path) as client:
        store.set_limits(ProxyLimits(latency_s=0.5))
        begun = client.begin_ranges([Span(need, 3, 9)], RangeAsk(Reason.RANDOM))
        os.kill(client.status()["pid"], signal.SIGKILL)
        store.set_limits(ProxyLimits(latency_s=0.0))
        assert as_bytes(client.end_ranges(begun)) == [whole[3:9]]
        assert as_bytes(client.end_ranges(begun)) == [whole[3:9]]


def test_begun_ranges_come_while_their_reader_does_something_else(tmp_path: Path, store: FaultProxy) -> None:
    """Begin returns before the store has answered; the same request from many is one."""
    (whole,) = fill(store, "d", 1, N_BYTES)
    (need,) = needs_of(1)
    store.set_limits(ProxyLimits(latency_s=1.0))
    with client_of("s3://bkt/d", tmp_path) as client:
        begun = [client.begin_ranges([Span(need, 3, 9)], RangeAsk(Reason.RANDOM)) for _ in range(8)]
        assert all(ticket.early is None for ticket in begun)
        assert [as_bytes(client.end_ranges(ticket)) for ticket in begun] == [[whole[3:9]]] * 8
    assert len(ranges(store)) == 1


def test_what_is_due_first_comes_first(tmp_path: Path, store: FaultProxy) -> None:
    """A first batch does not wait for what is needed after it, though that was asked for before."""
    n_late, n_soon = 480, 8
    put(store, {f"d/{i}": bytes(100) for i in range(n_late + n_soon)})
    spans = [Span(FileRequest(0, f"{i}", 100), 0, 9) for i in range(n_late + n_soon)]
    store.set_limits(ProxyLimits(latency_s=0.3))
    with client_of("s3://bkt/d", tmp_path) as client:
        late = client.begin_ranges(spans[:n_late], RangeAsk(Reason.FEW, 100.0))
        wait_until("all connections are in use", lambda: len(ranges(store)) >= 48)
        soon = client.begin_ranges(spans[n_late:], RangeAsk(Reason.FEW))
        assert as_bytes(client.end_ranges(soon)) == [bytes(9)] * n_soon
        assert len(ranges(store)) < n_late  # else they came last
        store.set_limits(ProxyLimits(latency_s=0.0))
        assert as_bytes(client.end_ranges(late)) == [bytes(9)] * n_late


def test_what_a_dead_job_has_begun_is_forgotten(tmp_path: Path, store: FaultProxy) -> None:
    """Its threads end; the fetcher goes on for others, as it was before."""
    fill(store, "d", 1, N_BYTES)
    (need,) = needs_of(1)
    with client_of("s3://bkt/d", tmp_path) as other:
        before = other.status()["threads"]
        with client_of("s3://bkt/d", tmp_path) as client:
            for at in range(50):
                client.begin_ranges([Span(need, at, at + 9)], RangeAsk(Reason.RANDOM))
        wait_until("its connection is gone", lambda: other.status()["connections"] == 1)
        wait_until("its tickets are gone", lambda: other.status()["tickets"] == 0)
        # Those that carry ranges stay, as many as there are connections at most.
        assert other.status()["threads"] <= before + 48


def test_many_threads_read_at_once(tmp_path: Path, store: FaultProxy) -> None:
    """Each gets its own bytes."""
    (whole,) = fill(store, "d", 1, N_BYTES)
    (need,) = needs_of(1)
    wrong: list[object] = []

    def read(client: FetchClient, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(20):
            begin = rng.randrange(N_BYTES - 9)
            found = as_bytes(read_ranges(client, [Span(need, begin, begin + 9)], Reason.NO_ROOM))
            if found != [whole[begin : begin + 9]]:
                wrong.append((seed, begin, found))

    with client_of("s3://bkt/d", tmp_path) as client:
        threads = [threading.Thread(target=read, args=(client, seed)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
