"""What lies in the cache after the fetcher has worked, and what is said when it could not."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from streaming.errors import (
    DeadlineError,
    NoRoomError,
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreBusyError,
    StoreMovedError,
    StoreUnreachableError,
    StreamingError,
    TransferDamagedError,
)
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest
from streaming.formats.compression import compress
from streaming.formats.hashing import hasher
from streaming.storage.url import parse_remote
from streaming.testing import Fault, FaultProxy, FaultRule, ProxyLimits
from support.fetcher_world import (
    PATIENCE_S,
    client_of,
    content,
    filled,
    read_and_compare,
    run_all,
    temporaries,
    wait_until,
)
from support.fetching import fetch_all
from support.stores import SILENT, STOPPED, UNAVAILABLE, fill, gets, put, ranges

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_BYTES = 100_000


def compressed(
    name: str = "0", algorithm: str = "zstd:3", hash_name: str | None = "xxh3_64"
) -> tuple[FileRequest, bytes]:
    """The need of a compressed file, and its compressed bytes."""
    raw = content(name, N_BYTES // 2) * 2
    whole = compress(algorithm, raw)
    need = FileRequest(0, name, N_BYTES, f"{name}.z", len(whole), algorithm)
    if hash_name is None:
        return need, whole
    digest = hasher(hash_name)
    digest.update(whole)
    return replace(need, hash_name=hash_name, hash_hex=digest.hexdigest()), whole


def raw_of(need: FileRequest) -> bytes:
    return content(need.name, N_BYTES // 2) * 2


# --- what comes


@pytest.mark.parametrize("algorithm", ["zstd:3", "gz:6", "bz2:1", "br:1", "snappy"])
@pytest.mark.parametrize("keep_zip", [False, True])
def test_a_compressed_file_is_there_in_raw_form(
    tmp_path: Path, store: FaultProxy, algorithm: str, keep_zip: bool
) -> None:
    """And in its compressed form only if that is kept."""
    need, whole = compressed(algorithm=algorithm)
    put(store, {"d/0.z": whole})
    with client_of("s3://bkt/d", tmp_path, keep_zip=keep_zip) as client:
        assert Path(client.wait(need)).read_bytes() == raw_of(need)
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert names == (["0", "0.z"] if keep_zip else ["0"])
    assert not keep_zip or (tmp_path / "0.z").read_bytes() == whole


def test_what_lies_there_compressed_needs_no_network(tmp_path: Path, store: FaultProxy) -> None:
    """As in a cache of the predecessor; a damaged one is fetched instead."""
    need, whole = compressed()
    (tmp_path / "0.z").write_bytes(whole)
    with client_of("s3://bkt/d", tmp_path) as client:
        assert Path(client.wait(need)).read_bytes() == raw_of(need)
        assert gets(store).total() == 0
        os.unlink(tmp_path / "0")
        (tmp_path / "0.z").write_bytes(bytes(len(whole)))
        put(store, {"d/0.z": whole})
        assert Path(client.wait(need)).read_bytes() == raw_of(need)
        assert gets(store)["d/0.z"] == 1


def test_each_file_is_fetched_once_for_all(tmp_path: Path, store: FaultProxy) -> None:
    """Eight processes, three jobs, fifty compressed files, all at once."""
    made = [compressed(str(i)) for i in range(50)]
    put(store, {f"d/{need.zip_name}": whole for need, whole in made})
    needs = [need for need, _ in made]
    with client_of("s3://bkt/d", tmp_path) as one, client_of("s3://bkt/d", tmp_path) as two:
        clients = [one, two, one, two, client_of("s3://bkt/d", tmp_path), one, two, one]
        run_all("fork", _announce_and_compare, [(client, needs) for client in clients])
    assert gets(store) == {f"d/{need.zip_name}": 1 for need in needs}
    assert temporaries(tmp_path) == []
    assert not list(tmp_path.glob("*.z"))


def _announce_and_compare(client: object, needs: list[FileRequest]) -> None:
    assert isinstance(client, FetchClient)
    client.announce(f"reader-{os.getpid()}", needs)
    read_and_compare(client, needs, [raw_of(need) for need in needs])


def test_a_file_of_unknown_size_comes_as_it_is(tmp_path: Path, store: FaultProxy) -> None:
    """An index, say; in a folder of its own, with nothing else known."""
    put(store, {"d/sub/index.json": b"{}"})
    with client_of("s3://bkt/d", tmp_path) as client:
        assert Path(client.wait(FileRequest(0, "sub/index.json", -1))).read_bytes() == b"{}"
        assert client.read_object(parse_remote("s3://bkt/d"), "sub/index.json") == b"{}"


def test_a_wrong_file_in_the_cache_is_a_miss(tmp_path: Path) -> None:
    """Cut, emptied or deleted by hand, while the fetcher runs: replaced, whole."""
    needs = filled(tmp_path / "source", 3, 1000)
    cache = tmp_path / "cache"
    with client_of(tmp_path / "source", cache) as client:
        fetch_all(client, needs)
        os.truncate(cache / "0", 10)
        os.truncate(cache / "1", 0)
        os.unlink(cache / "2")
        read_and_compare(client, needs, [content(str(i), 1000) for i in range(3)])


def test_a_source_is_never_touched(tmp_path: Path) -> None:
    """Nor is a folder written that is both source and cache, whatever is missing or wrong in it."""
    needs = filled(tmp_path / "source", 3, 1000)
    before = _listing(tmp_path / "source")
    with client_of(tmp_path / "source", tmp_path / "cache") as client:
        fetch_all(client, needs)
    assert _listing(tmp_path / "source") == before
    source = str(tmp_path / "source")
    (tmp_path / "link").symlink_to(source)
    with client_of(tmp_path / "link", tmp_path / "source") as client:
        assert client.wait(needs[0]) == f"{source}/0"
        with pytest.raises(ObjectMissingError, match="source itself"):
            client.wait(FileRequest(0, "absent", 5))
        with pytest.raises(TransferDamagedError, match="1000 bytes and the index states 5"):
            client.wait(FileRequest(0, "1", 5))
    assert {k: v for k, v in _listing(tmp_path / "source").items() if ".streaming" not in k} == before


def _listing(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- what is said when it does not come


def test_each_failure_has_its_kind_and_says_where(tmp_path: Path, store: FaultProxy) -> None:
    """Missing, forbidden, busy, elsewhere, damaged: told apart, with object and endpoint, tried as often as allowed."""
    put(store, {f"d/{i}": content(str(i), 100) for i in range(10)})
    cases: list[tuple[str, Fault, type[StreamingError], int]] = [
        ("gone", Fault(), ObjectMissingError, 1),
        ("1", Fault(status=403), ObjectForbiddenError, 1),
        ("2", UNAVAILABLE, StoreBusyError, 2),
        ("4", Fault(status=301), StoreMovedError, 1),
        ("5", Fault(cut_after=50), TransferDamagedError, 2),
    ]
    with client_of("s3://bkt/d", tmp_path) as client:
        for name, fault, kind, n_gets in cases:
            store.set_rules(FaultRule(fault, path=f"d/{name}$"))
            with pytest.raises(StreamingError) as caught:
                client.wait(FileRequest(0, name, 100))
            assert type(caught.value) is kind, name
            assert f"s3://bkt/d/{name}" in str(caught.value)
            assert f"127.0.0.1:{store.port}" in str(caught.value)
            assert "AWS_ACCESS_KEY_ID" in str(caught.value)
            assert gets(store)[f"d/{name}"] == n_gets, name
    assert temporaries(tmp_path) == []


def test_a_request_to_slow_down_is_no_attempt(tmp_path: Path, store: FaultProxy) -> None:
    """It is heeded until nothing else has come for the user's time-out; then it is an error that says so."""
    (whole,) = fill(store, "d", 1, 100)
    store.set_rules(FaultRule(Fault(status=429), path="d/0", times=3), FaultRule(Fault(status=429), path="d/1"))
    with client_of("s3://bkt/d", tmp_path, download_retry=1) as client:
        assert Path(client.wait(FileRequest(0, "0", 100))).read_bytes() == whole
    assert gets(store)["d/0"] == 4
    hasty = client_of("s3://bkt/d", tmp_path, download_timeout=1.0)
    with hasty as client, pytest.raises(StoreBusyError, match="slow down"):
        client.wait(FileRequest(0, "1", 100))


@pytest.mark.parametrize(("retry", "n_gets"), [(3, 3), (2, 2), (1, 1), (0, 0), (-1, 0)])
def test_the_number_of_attempts_is_what_the_store_sees(
    tmp_path: Path, store: FaultProxy, retry: int, n_gets: int
) -> None:
    """Of three answers 503, 503, 200 the third is reached with three attempts."""
    fill(store, "d", 1, 100)
    store.set_rules(FaultRule(UNAVAILABLE, times=2))
    with client_of("s3://bkt/d", tmp_path, download_retry=retry) as client:
        if retry == 3:
            client.wait(FileRequest(0, "0", 100))
        else:
            with pytest.raises(StorageError):
                client.wait(FileRequest(0, "0", 100))
    assert gets(store)["d/0"] == n_gets


def test_a_cut_body_goes_on_where_it_stopped(tmp_path: Path, store: FaultProxy) -> None:
    """By range; that is no new attempt, as it makes progress."""
    (whole,) = fill(store, "d", 1, 8 << 20)
    store.set_rules(*(FaultRule(Fault(cut_after=at << 20), times=1) for at in (5, 2)))
    with client_of("s3://bkt/d", tmp_path, download_retry=1) as client:
        assert Path(client.wait(FileRequest(0, "0", len(whole)))).read_bytes() == whole
    assert gets(store)["d/0"] == 3
    assert [begin > 1 << 20 for _, begin in ranges(store)] == [True, True]


def test_a_flipped_byte_is_found_by_its_hash(tmp_path: Path, store: FaultProxy) -> None:
    """Of raw and of compressed files; once is mended, always is an error with both hashes, and nothing is placed."""
    zipped, whole = compressed("z")
    (raw,) = fill(store, "d", 1, 1000)
    put(store, {"d/z.z": whole})
    digest = hasher("xxh64")
    digest.update(raw)
    plain = FileRequest(0, "0", 1000, hash_name="xxh64", hash_hex=digest.hexdigest())
    with client_of("s3://bkt/d", tmp_path) as client:
        store.set_rules(FaultRule(Fault(flip_at=0), once_per_path=True))
        assert Path(client.wait(plain)).read_bytes() == raw
        assert Path(client.wait(zipped)).read_bytes() == raw_of(zipped)
        os.unlink(tmp_path / "0")
        store.set_rules(FaultRule(Fault(flip_at=0)))
        with pytest.raises(TransferDamagedError, match=digest.hexdigest()):
            client.wait(plain)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".streaming", "z"]


@pytest.mark.parametrize("stated", [5, 2000])
def test_a_size_that_is_not_the_one_of_the_index_is_an_error(tmp_path: Path, store: FaultProxy, stated: int) -> None:
    """It names the object and both sizes."""
    fill(store, "d", 1, 1000)
    with (
        client_of("s3://bkt/d", tmp_path) as client,
        pytest.raises(TransferDamagedError, match=rf"s3://bkt/d/0 has 1000 bytes .* states {stated}"),
    ):
        client.wait(FileRequest(0, "0", stated))


def test_a_compressed_file_that_holds_more_than_stated_stops_there(tmp_path: Path, store: FaultProxy) -> None:
    """Neither memory nor disk is filled, and nothing is placed."""
    need, whole = compressed()
    put(store, {"d/0.z": whole})
    with client_of("s3://bkt/d", tmp_path) as client, pytest.raises(TransferDamagedError, match="d/0"):
        client.wait(replace(need, n_bytes=1000))
    assert [path.name for path in tmp_path.iterdir()] == [".streaming"]


def test_a_store_that_is_not_there_is_an_error_soon(
    tmp_path: Path, store: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent after the request, silent in the middle, refused: within the time that is allowed, never a hang."""
    fill(store, "d", 2, 200_000)
    store.set_rules(FaultRule(SILENT, path="d/0"), FaultRule(STOPPED, path="d/1"))
    began_s = time.monotonic()
    with client_of("s3://bkt/d", tmp_path, download_timeout=1.0) as client:
        with pytest.raises(StoreUnreachableError, match="said nothing for too long"):
            client.wait(FileRequest(0, "0", 200_000))
        with pytest.raises(StoreUnreachableError, match="said nothing for too long"):
            client.wait(FileRequest(0, "1", 200_000))
        client.close()
        monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(StoreUnreachableError, match="ConnectionRefused"):
            client.wait(FileRequest(0, "1", 200_000))
    assert time.monotonic() - began_s < 20


def test_a_wait_ends_at_its_deadline_and_says_for_what(tmp_path: Path, store: FaultProxy) -> None:
    """While the transfer goes on."""
    (whole,) = fill(store, "d", 1, 400_000)
    store.set_limits(ProxyLimits(connection_bytes_per_s=150e3))
    with client_of("s3://bkt/d", tmp_path) as client:
        with pytest.raises(DeadlineError, match="0 of s3://bkt/d"):
            client.wait(FileRequest(0, "0", 400_000), timeout_s=0.5)
        assert Path(client.wait(FileRequest(0, "0", 400_000))).read_bytes() == whole
    assert gets(store)["d/0"] == 1


def wait_until_rested(client: FetchClient, file: FileRequest, kind: type[Exception]) -> None:
    """Wait for a file of which a failure still stands, until it is tried again."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            client.wait(file)
        except kind:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            return


def test_a_failed_read_ahead_is_tried_no_more_than_allowed(tmp_path: Path, store: FaultProxy) -> None:
    """Who waits right after it gets its error; later it is tried again."""
    fill(store, "d", 1, 100)
    store.set_rules(FaultRule(UNAVAILABLE, times=2))
    with client_of("s3://bkt/d", tmp_path) as client:
        client.announce("rank0", [FileRequest(0, "0", 100)])
        with pytest.raises(StoreBusyError):
            client.wait(FileRequest(0, "0", 100))
        assert gets(store)["d/0"] == 2
        wait_until_rested(client, FileRequest(0, "0", 100), StoreBusyError)
    assert gets(store)["d/0"] == 3


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, store: FaultProxy) -> None:
    """A file where the folder should be."""
    put(store, {"d/sub/0": b"abc"})
    (tmp_path / "sub").write_text("in the way")
    with client_of("s3://bkt/d", tmp_path) as client, pytest.raises(StorageError, match="sub"):
        client.wait(FileRequest(0, "sub/0", 3))


def test_a_full_disk_fails_that_file_only(tmp_path: Path, store: FaultProxy) -> None:
    """The next comes when there is room again; no half file stays."""
    cache = tmp_path / "small"
    cache.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(cache)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        contents = fill(store, "d", 6, 1 << 20)
        needs = [FileRequest(0, str(i), 1 << 20) for i in range(6)]
        with client_of("s3://bkt/d", cache) as client:
            client.announce("r", needs)
            for need in needs:
                with contextlib.suppress(NoRoomError):
                    client.wait(need)
            wait_until("all have ended", lambda: client.status()["moving"] == 0)
            assert temporaries(cache) == []
            placed = [need for need in needs if client.is_present(need)]
            assert 3 <= len(placed) <= 4
            (absent, *_) = [need for need in needs if need not in placed]
            with pytest.raises(NoRoomError, match="no room"):
                client.wait(absent)
            os.unlink(client.path(placed[0]))
            wait_until_rested(client, absent, NoRoomError)
            read_and_compare(client, [absent], [contents[int(absent.name)]])
    finally:
        subprocess.run(["umount", "-l", str(cache)], check=True)


def test_what_nobody_wants_any_more_is_given_up(store: FaultProxy, tmp_path: Path) -> None:
    """A file under way whose list is withdrawn stops in the middle; wanted again it comes, whole."""
    (whole,) = fill(store, "data", 1, 20 << 20)
    store.set_limits(ProxyLimits(connection_bytes_per_s=1e6))  # 20 s for all of it
    need = FileRequest(0, "0", 20 << 20)
    with client_of("s3://bkt/data", tmp_path) as client:
        client.announce("r", [need])
        wait_until("it moves", lambda: client.status()["moving_bytes"] > 0)
        client.announce("r", [])
        wait_until("it is given up", lambda: client.status()["moving"] == 0)
        assert client.status()["failures"] == 0
        assert not temporaries(tmp_path)
        store.set_limits(ProxyLimits())
        assert Path(client.wait(need)).read_bytes() == whole
