"""Disks that are full, folders that are not ours, and a fetcher that goes on all the same."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from streaming.errors import CacheWriteError, NoRoomError, ObjectMissingError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire.protocol import FileRequest, Reason, Span
from streaming.formats.compression import compress
from streaming.testing import Fault, FaultProxy, FaultRule
from support.disks import index_text, names_in, own_disk, write_dataset
from support.fetcher_world import as_bytes, client_of, content, fetchers_of, read_and_compare, temporaries, wait_until
from support.fetching import fetch_all, read_ranges, stream_config
from support.stores import fill, gets, put

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

MIB = 1 << 20
INDEX = FileRequest(0, "index.json", -1)


def needs_of(n: int, n_bytes: int = MIB) -> list[FileRequest]:
    return [FileRequest(0, str(i), n_bytes) for i in range(n)]


def client_in(root: Path, folder: str) -> FetchClient:
    """A client whose stream lies below a root that others share."""
    return FetchClient(str(root), [stream_config("s3://bkt/d", str(root / folder), root=str(root))])


def job(root: Path, folder: str, needs: list[FileRequest]) -> None:
    """A job from its beginning to its end: it fetches these files, and their index as all jobs do."""
    with client_in(root, folder) as client:
        fetch_all(client, [INDEX, *needs])


def test_a_full_disk_costs_old_jobs_their_files_and_running_ones_none(tmp_path: Path, store: FaultProxy) -> None:
    """The longest unused go, as many as are needed; when there are none left, that file fails and ranges go on."""
    contents = fill(store, "d", 8, MIB)
    needs = needs_of(8)
    put(store, {"d/index.json": index_text(needs).encode()})
    disk = tmp_path / "disk"
    with own_disk(disk, 6 * MIB + (1 << 17)):
        job(disk, "old", needs[:3])
        wait_until("it has ended for its fetcher, too", lambda: not fetchers_of(disk))
        for name in "012":
            os.utime(disk / "old" / name, (1000.0 + int(name),) * 2)
        (disk / "old" / "notes").write_bytes(b"mine")
        with client_in(disk, "live") as live, client_in(disk, "new") as new:
            fetch_all(live, [INDEX, *needs[:2]])
            for n_new, left in ((1, "012"), (2, "12"), (3, "2"), (4, "")):
                read_and_compare(new, needs[2 : 2 + n_new], contents[2 : 2 + n_new])
                assert names_in(disk / "old") == {"notes", "index.json", ".streaming-source", *left}
            with pytest.raises(NoRoomError, match=r"no room on the disk for .*/new/6"):
                new.wait(needs[6])
            assert as_bytes(read_ranges(new, [Span(needs[6], 3, 9)], Reason.NO_ROOM)) == [contents[6][3:9]]
            read_and_compare(live, needs[:2], contents[:2])
            assert new.status()["evicted"] == 3
        assert temporaries(disk) == []
    assert [gets(store)[f"d/{i}"] for i in range(6)] == [2, 2, 2, 1, 1, 1]


def test_a_full_disk_under_a_limit_costs_what_is_needed_last(tmp_path: Path, store: FaultProxy) -> None:
    """Others fill the disk, though the limit allows more; what is held stays."""
    contents = fill(store, "d", 5, MIB)
    needs = needs_of(5)
    disk = tmp_path / "disk"
    with own_disk(disk, 4 * MIB + (1 << 17)):
        streams = [stream_config("s3://bkt/d", str(disk))]
        with FetchClient(str(disk), streams, cache_limit=100 * MIB) as client:
            fetch_all(client, needs[:4])
            client.announce("r", [needs[4], needs[3], needs[1], needs[0]], [needs[2], needs[0]])
            read_and_compare(client, needs[4:], contents[4:])
            assert names_in(disk) == {"0", "2", "3", "4"}
            # A file is on disk a moment before its transfer has ended.
            wait_until("what went is not counted any more", lambda: client.status()["cache_bytes"] == 4 * MIB)


def test_what_a_full_disk_refuses_leaves_nothing_behind(tmp_path: Path, store: FaultProxy) -> None:
    """Files, large files in parts, compressed ones that are kept or not, offset tables: no half of any."""
    raw = content("z", MIB) * 2
    whole = compress("zstd:3", raw)
    put(store, {"d/0": content("0", 3 * MIB), "d/z.z": whole, "d/large": bytes(40 * MIB)})
    zipped = FileRequest(0, "z", 2 * MIB, "z.z", len(whole), "zstd:3")
    disk = tmp_path / "disk"
    with own_disk(disk, 2 * MIB - (1 << 16)):
        for keep_zip in (False, True):
            with client_of("s3://bkt/d", disk, keep_zip=keep_zip) as client:
                for need in (FileRequest(0, "0", 3 * MIB), FileRequest(0, "large", 40 * MIB), zipped):
                    with pytest.raises(NoRoomError):
                        client.wait(need)
                spans = [Span(FileRequest(0, "0", 3 * MIB), 0, 2 * MIB, keep=True)]
                assert as_bytes(read_ranges(client, spans, Reason.NO_ROOM)) == [content("0", 2 * MIB)]
                wait_until("the fetcher has nothing to do", lambda: client.status()["ranges_are_idle"])
                assert names_in(disk) == set()
        with client_of("s3://bkt/d", disk) as client:
            read_ranges(client, [Span(FileRequest(0, "0", 3 * MIB), 0, 99, keep=True)], Reason.NO_ROOM)
            wait_until("the table is kept", lambda: names_in(disk) == {".0.table"})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give the cache away")
def test_a_cache_of_another_user_is_read_and_not_written(tmp_path: Path, store: FaultProxy) -> None:
    """What is there is read; what is not is an error that names the folder, or comes by range; nothing is deleted."""
    fill(store, "d", 3, 1000)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "0").write_bytes(content("d/0", 1000))
    write_dataset(cache, needs_of(3, 1000))
    for path in (cache, *cache.iterdir()):
        os.chown(path, 65534, 65534)
    code = "import sys\nfrom pathlib import Path\nimport test_fetcher_disk as t\nt.read_as_guest(Path(sys.argv[1]))"
    search = [str(Path(__file__).parent), *sys.path]
    subprocess.run(
        [sys.executable, "-c", code, str(cache)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        preexec_fn=_be_no_superuser,
        check=True,
        timeout=120,
    )
    assert names_in(cache) == {"0", "index.json"}


def _be_no_superuser() -> None:
    """From the next program on, the root user is bound to owners and modes like everybody."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2, 3):  # DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER
        if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
            raise OSError(ctypes.get_errno(), "prctl")


def read_as_guest(cache: Path) -> None:
    """What a user sees whose cache folder is another's."""
    contents = [content(f"d/{i}", 1000) for i in range(3)]
    needs = needs_of(3, 1000)
    with client_of("s3://bkt/d", cache) as client:
        read_and_compare(client, needs[:1], contents[:1])
        assert client.n_sent == 0
        with pytest.raises(CacheWriteError, match=f"cannot write {cache}/1: Permission denied; check owner"):
            client.wait(needs[1])
        spans = [Span(needs[1], 0, 9, keep=True), Span(needs[2], 5, 9), Span(needs[0], 5, 9)]
        assert as_bytes(read_ranges(client, spans, Reason.NO_ROOM)) == [contents[1][:9], contents[2][5:9], None]
    with FetchClient(str(cache), [stream_config("s3://bkt/d", str(cache))], cache_limit=100) as client:
        with pytest.raises(NoRoomError, match="in files that are no copies and stay"):
            client.wait(needs[2])
        assert client.status()["evicted"] == 0


def test_a_read_only_cache_is_read(tmp_path: Path, store: FaultProxy) -> None:
    """The same where the file system takes no writes."""
    contents = fill(store, "d", 2, 1000)
    needs = needs_of(2, 1000)
    disk = tmp_path / "disk"
    with own_disk(disk, MIB):
        with client_of("s3://bkt/d", disk) as client:
            client.wait(needs[0])
        wait_until("the fetcher has ended", lambda: not fetchers_of(disk))
        remount = ["mount", "-o", "remount,ro", str(disk)]
        wait_until("no file is open there", lambda: subprocess.run(remount, capture_output=True).returncode == 0)
        with client_of("s3://bkt/d", disk) as client:
            read_and_compare(client, needs[:1], contents[:1])
            with pytest.raises(CacheWriteError, match="Read-only file system"):
                client.wait(needs[1])
            assert as_bytes(read_ranges(client, [Span(needs[1], 0, 9)], Reason.NO_ROOM)) == [contents[1][:9]]


def test_a_limited_cache_that_is_deleted_under_a_running_job_is_filled_anew(tmp_path: Path, store: FaultProxy) -> None:
    """Files and folders; the fetcher is found again, or another, and what was there takes no room any more."""
    contents = fill(store, "d", 6, 1000)
    needs = needs_of(6, 1000)
    cache = tmp_path / "cache"
    with FetchClient(str(cache), [stream_config("s3://bkt/d", str(cache))], cache_limit=3000) as client:
        client.announce("r", needs, needs[:1])
        read_and_compare(client, needs[:3], contents[:3])
        for path in sorted(cache.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        cache.rmdir()
        read_and_compare(client, needs[3:], contents[3:])
        wait_until("as many have come as may", lambda: client.status()["connections"] and len(names_in(cache)) == 3)


def test_the_log_does_not_grow_without_end(tmp_path: Path, store: FaultProxy) -> None:
    """However much goes wrong; its last lines say what."""
    cache = tmp_path / "cache"
    name = "a" * 200
    with client_of("s3://bkt/d", cache, download_retry=1) as client:
        need = FileRequest(0, name, 100)
        for _ in range(3):
            with pytest.raises(ObjectMissingError):
                client.wait(replace(need, name=f"{name}{os.urandom(4).hex()}"))
        (log,) = cache.rglob("*.log")
        assert name in log.read_text()
        with log.open("a") as file:
            file.write("x" * (3 << 20))
        wait_until("it has been cut", lambda: log.stat().st_size < MIB)
        store.set_rules(FaultRule(Fault(status=403), path=name, times=1))
        with pytest.raises(OSError, match="403"):
            client.wait(need)
        assert log.stat().st_size < MIB
