"""Files in the cache that are not what was fetched: each is a miss, fetched again once, and never data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming import MDSWriter, StreamingDataset
from streaming.cache.files import table_name
from streaming.cache.origin import ORIGIN_NAME
from streaming.errors import IndexFormatError, ObjectMissingError, ShardDamagedError, StreamingError
from streaming.testing.web import WebServer
from support.disks import read_only

N = 60


def write(folder: Path, **options: Any) -> None:
    with MDSWriter(out=str(folder), columns={"i": "int", "t": "str"}, size_limit=600, **options) as out:
        for i in range(N):
            out.write({"i": i, "t": f"text {i:04}"})


def read(remote: str | Path, local: Path, **options: Any) -> list[int]:
    with StreamingDataset(remote=str(remote), local=str(local), batch_size=1, **options) as dataset:
        samples = list(dataset)
    assert all(sample["t"] == f"text {sample['i']:04}" for sample in samples)
    return [sample["i"] for sample in samples]


def flipped(path: Path) -> None:
    """Change a letter of each sample, in place, and nothing of how they are told apart."""
    content = path.read_bytes()
    assert b"text" in content
    path.write_bytes(content.replace(b"text", b"tExt"))


def flipped_and_replaced(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy(path, other)
    flipped(other)
    other.replace(path)


def flipped_under_its_old_date(path: Path) -> None:
    """By another file, so that no attribute of the first is left."""
    status = path.stat()
    flipped_and_replaced(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("damage", [flipped, flipped_and_replaced, flipped_under_its_old_date])
@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}])
@pytest.mark.parametrize("validate_hash", ["sha1", "xxh64"])
def test_a_cached_file_with_other_bytes_is_fetched_again(
    tmp_path: Path, damage: Callable[[Path], None], options: dict[str, Any], validate_hash: str
) -> None:
    """Where the user names a hash: of the right name and size is not enough."""
    write(tmp_path / "remote", hashes=["sha1", "xxh64"], **options)
    assert read(tmp_path / "remote", tmp_path / "local") == list(range(N))
    damage(tmp_path / "local" / "shard.00001.mds")
    assert read(tmp_path / "remote", tmp_path / "local", validate_hash=validate_hash) == list(range(N))
    for path in (tmp_path / "local").glob("shard.*.mds"):
        assert b"tExt" not in path.read_bytes()


def test_a_cache_that_others_filled_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without our note are read through, noted, and not read through again by the next process."""
    write(tmp_path / "remote", hashes=["sha1"])
    shutil.copytree(tmp_path / "remote", tmp_path / "local")
    flipped(tmp_path / "local" / "shard.00000.mds")
    assert read(tmp_path / "remote", tmp_path / "local", validate_hash="sha1") == list(range(N))

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is computed again")

    monkeypatch.setattr("streaming.read.shards.files.hasher", refuse)
    if "user.streaming.checked" in os.listxattr(tmp_path / "local" / "shard.00001.mds"):
        assert read(tmp_path / "remote", tmp_path / "local", validate_hash="sha1") == list(range(N))


def test_what_was_checked_before_the_machine_started_again_is_checked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may have lost bytes that it had not written, and kept the note."""
    write(tmp_path / "remote", hashes=["sha1"])
    with monkeypatch.context() as before:
        before.setattr("streaming.cache.files.boot_id", lambda: "an earlier run of the machine")
        shutil.copytree(tmp_path / "remote", tmp_path / "local")
        assert read(tmp_path / "remote", tmp_path / "local", validate_hash="sha1") == list(range(N))
    path = tmp_path / "local" / "shard.00001.mds"
    status = path.stat()
    flipped(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read(tmp_path / "remote", tmp_path / "local", validate_hash="sha1") == list(range(N))


def test_a_damaged_file_that_may_not_be_deleted_is_an_error(tmp_path: Path) -> None:
    """One that says what to do; never its data."""
    write(tmp_path / "remote", hashes=["sha1"])
    shutil.copytree(tmp_path / "remote", tmp_path / "local")
    flipped(tmp_path / "local" / "shard.00001.mds")
    with read_only(tmp_path / "local"), pytest.raises(ShardDamagedError, match="delete it"):
        read(tmp_path / "remote", tmp_path / "local", validate_hash="sha1")


def cut_in_a_sample(path: Path) -> None:
    """Text that is no UTF-8, in each sample."""
    path.write_bytes(path.read_bytes().replace(b"text", b"\xff\xff\xff\xff"))


@pytest.mark.parametrize("is_sequential", [True, False])
def test_damage_that_shows_when_a_sample_is_read_is_mended(tmp_path: Path, is_sequential: bool) -> None:
    """The shard is fetched again, once, though its size and its offsets were right."""
    write(tmp_path / "remote")
    assert read(tmp_path / "remote", tmp_path / "local") == list(range(N))
    cut_in_a_sample(tmp_path / "local" / "shard.00002.mds")
    if is_sequential:
        assert read(tmp_path / "remote", tmp_path / "local") == list(range(N))
    else:
        with StreamingDataset(remote=str(tmp_path / "remote"), local=str(tmp_path / "local")) as dataset:
            assert [dataset[i]["i"] for i in reversed(range(N))] == list(reversed(range(N)))
    assert (tmp_path / "local" / "shard.00002.mds").read_bytes() == (tmp_path / "remote/shard.00002.mds").read_bytes()


def test_damage_that_the_store_has_is_an_error(tmp_path: Path) -> None:
    """After one more transfer, and it names shard and sample; a source is never deleted."""
    write(tmp_path / "remote")
    cut_in_a_sample(tmp_path / "remote" / "shard.00002.mds")
    data = str(tmp_path / "remote")
    for remote, local in ((data, str(tmp_path / "local")), (None, data)):
        with (
            StreamingDataset(remote=remote, local=local, batch_size=1) as dataset,
            pytest.raises(StreamingError, match=r"shard 2 \(shard.00002.mds\), sample 0"),
        ):
            list(dataset)
    assert len(list((tmp_path / "remote").iterdir())) == len(list((tmp_path / "local").glob("[!.]*")))


_SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-1],
    "a page": lambda content: b"<html>please log in</html>",
    "zeros": lambda content: bytes(len(content)),
    "other JSON": lambda content: b'{"hello": [1, 2]}',
    "an index that cannot be": lambda content: content.replace(b'"samples"', b'"simples"'),
    "deep": lambda content: b"[" * 100_000,
}


@pytest.mark.parametrize("spoil", _SPOILED.values(), ids=_SPOILED.keys())
@pytest.mark.parametrize("name", ["index.json", ORIGIN_NAME, "shard.00001.mds", table_name("shard.00001.mds")])
def test_every_file_that_lies_in_the_cache_may_be_spoiled(
    tmp_path: Path, spoil: Callable[[bytes], bytes], name: str
) -> None:
    """It is a miss: the samples are those of the store, in this run and in the next."""
    write(tmp_path / "remote")
    assert read(tmp_path / "remote", tmp_path / "local") == list(range(N))
    path = tmp_path / "local" / name
    if not path.exists():
        path.write_bytes(b"x" * 40)  # an offset table of a shard that is present
    path.write_bytes(spoil(path.read_bytes()))
    for _ in range(2):
        assert read(tmp_path / "remote", tmp_path / "local") == list(range(N))


def test_an_index_that_is_none_is_never_placed(tmp_path: Path) -> None:
    """A login page for an index: an error that names it; when the server is well again, so is the dataset."""
    with WebServer.started() as server:
        write(Path(server.folder) / "data")
        index = (Path(server.folder) / "data" / "index.json").read_bytes()
        for spoil in _SPOILED.values():
            (Path(server.folder) / "data" / "index.json").write_bytes(spoil(index))
            with pytest.raises(IndexFormatError, match=r"stream 0 .*index\.json"):
                read(server.url("data"), tmp_path / "local")
            assert not (tmp_path / "local" / "index.json").exists()
        (Path(server.folder) / "data" / "index.json").write_bytes(index)
        assert read(server.url("data"), tmp_path / "local") == list(range(N))


def test_a_spoiled_index_without_its_store_names_the_file(tmp_path: Path) -> None:
    """The words send the user to the cache, not to the store."""
    with WebServer.started() as server:
        write(Path(server.folder) / "data")
        url = server.url("data")
        assert read(url, tmp_path / "local") == list(range(N))
    (tmp_path / "local" / "index.json").write_bytes(b"{")
    with pytest.raises(IndexFormatError, match=str(tmp_path / "local")):
        read(url, tmp_path / "local", download_retry=1)


def test_a_new_job_does_not_get_the_failures_of_the_last_one(tmp_path: Path) -> None:
    """A shard that was missing a moment ago is asked for again by who comes now, and so is an index."""
    write(tmp_path / "remote", compression="zstd")  # so that nothing comes by range
    for name in ("shard.00001.mds.zstd", "index.json"):
        (tmp_path / "remote" / name).rename(tmp_path / name)
        with pytest.raises(ObjectMissingError, match=name):
            read(tmp_path / "remote", tmp_path / name.partition(".")[0])
        (tmp_path / name).rename(tmp_path / "remote" / name)
        assert read(tmp_path / "remote", tmp_path / name.partition(".")[0]) == list(range(N))
