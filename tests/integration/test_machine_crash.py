"""A machine that dies keeps names and sizes of files whose bytes it had not written. None of them is ever served."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from streaming import MDSWriter, StreamingDataset
from streaming.cache.durability import NOTE, SyncKeeper, lost_since_s, note_synced, sync_folder
from streaming.cache.files import boot_id
from support.disks import keeps_attributes
from support.fetcher_world import wait_until

N = 40


@pytest.fixture(autouse=True)
def with_attributes(tmp_path: Path) -> None:
    if not keeps_attributes(tmp_path):
        pytest.skip("this file system keeps no attributes of folders, so nothing can be noted")


@pytest.fixture(
    params=[{}, {"hashes": ["sha1"]}, {"compression": "zstd"}, {"compression": "zstd", "hashes": ["xxh64"]}]
)
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with MDSWriter(out=str(tmp_path / "remote"), columns={"b": "bytes"}, size_limit=2_000, **request.param) as out:
        for i in range(N):
            out.write({"b": i.to_bytes(2, "big") * 100})
    return tmp_path / "remote"


def read(remote: Path, local: Path, **options: Any) -> bool:
    with StreamingDataset(remote=str(remote), local=str(local), batch_size=1, **options) as dataset:
        return [sample["b"] for sample in dataset] == [i.to_bytes(2, "big") * 100 for i in range(N)]


def zeroed(path: Path) -> None:
    """What is left of a file that was never written: its size and its date. Samples of zeros decode well."""
    content, status = path.read_bytes(), path.stat()
    path.write_bytes(content[:48] + bytes(len(content) - 48) if path.suffix == ".mds" else bytes(len(content)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("keep_zip", [False, True])
def test_files_that_may_not_have_reached_the_disk_are_not_read(
    remote: Path, tmp_path: Path, keep_zip: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor are they after the next start, which trusts what was fetched anew."""
    local = tmp_path / "local"
    assert read(remote, local, keep_zip=keep_zip)
    damaged = [path for path in local.iterdir() if path.name.startswith("shard.0000")]
    for path in damaged[::2]:
        zeroed(path)
    monkeypatch.setattr("streaming.cache.durability.boot_id", lambda: "the machine started again")
    assert read(remote, local, keep_zip=keep_zip)
    assert "may not have reached the disk" in caplog.text
    caplog.clear()
    assert lost_since_s(str(local)) is None
    note_synced(str(local), time.time() + 10)
    monkeypatch.setattr("streaming.cache.durability.boot_id", lambda: "and again")
    assert read(remote, local, keep_zip=keep_zip)
    assert caplog.text == ""


def test_files_of_a_machine_that_goes_on_are_trusted(remote: Path, tmp_path: Path) -> None:
    """No file is checked or fetched twice while the machine runs."""
    local = tmp_path / "local"
    assert read(remote, local)
    before = {path.name: path.stat().st_ino for path in local.glob("shard.*")}
    assert read(remote, local)
    assert {path.name: path.stat().st_ino for path in local.glob("shard.*")} == before


def test_a_cache_without_a_note_is_trusted(tmp_path: Path) -> None:
    """Of the predecessor, of a user, or on a network file system."""
    assert lost_since_s(str(tmp_path)) is None


@pytest.mark.parametrize("text", [b"", b"\0" * 60, b"{", b"[]", b'{"boot": "b"}', b'{"synced_s": 5}'])
def test_a_note_that_is_none_vouches_for_nothing(tmp_path: Path, text: bytes) -> None:
    os.setxattr(tmp_path, NOTE, text)
    assert lost_since_s(str(tmp_path)) == 0.0


def test_the_note_is_there_before_the_first_file_and_moves_on(tmp_path: Path) -> None:
    """It says until when everything is on the disk, and a crash in between is never forgotten."""
    keeper = SyncKeeper(every_s=0.05)
    began_s = time.time()
    keeper.placing(str(tmp_path))
    first = os.getxattr(tmp_path, NOTE)
    assert boot_id().encode() in first
    wait_until("the note to move on", lambda: os.getxattr(tmp_path, NOTE) != first)
    assert sync_folder(str(tmp_path))
    note_synced(str(tmp_path), began_s)
    os.setxattr(tmp_path, NOTE, os.getxattr(tmp_path, NOTE).replace(boot_id().encode(), b"an earlier run"))
    assert lost_since_s(str(tmp_path)) == began_s
    for _ in range(3):
        keeper.placing(str(tmp_path))
        time.sleep(0.1)
    assert lost_since_s(str(tmp_path)) == began_s


def test_side_files_are_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have neither size nor hash in any index."""
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.mp4").write_bytes(b"film" * 100)
    with MDSWriter(out=str(tmp_path / "remote"), columns={"i": "int"}) as out:
        out.write({"i": 1})
    for is_again in (False, True):
        with StreamingDataset(local=str(tmp_path / "remote"), batch_size=1) as dataset:
            clips = dataset.side_files(str(tmp_path / "clips"), local=str(tmp_path / "cache"))
            assert clips.read("a.mp4") == b"film" * 100
        if not is_again:
            zeroed(tmp_path / "cache" / "a.mp4")
            monkeypatch.setattr("streaming.cache.durability.boot_id", lambda: "the machine started again")
