"""Small file systems for tests, and datasets whose index lists given files."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from streaming.fetch.wire.protocol import FileRequest


@contextlib.contextmanager
def own_disk(folder: Path, n_bytes: int) -> Iterator[None]:
    """Mount a file system of this size at `folder` for the block. The test is skipped where that is impossible."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def bound(folder: Path, again: Path) -> Iterator[None]:
    """In the block `folder` is also mounted at `again`. The test is skipped where that is impossible."""
    again.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "--bind", str(folder), str(again)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(again)], check=True)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """In the block nobody can change `folder`: by its mode, and for root, who may do everything, by a mount."""
    if os.geteuid():
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(0o700)
        return
    with bound(folder, folder):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield


def used_bytes(folder: Path) -> int:
    """Bytes in use on the file system of `folder`."""
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Measure `used_bytes` throughout the block; the one entry of the list is the largest value so far."""
    most, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.001):
            most[0] = max(most[0], used_bytes(folder))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def names_in(folder: Path) -> set[str]:
    """The names of the files in a folder."""
    return {path.name for path in folder.iterdir() if path.is_file()}


def bytes_in(folder: Path) -> int:
    """Bytes of the files below a cache folder, without links and the fetcher's own files."""
    files = (path for path in folder.rglob("*") if ".streaming" not in path.parts)
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())


def index_text(needs: Sequence[FileRequest]) -> str:
    """An index that lists these files as shards of one sample."""
    shards = [
        {
            "format": "mds",
            "version": 2,
            "column_names": ["x"],
            "column_encodings": ["bytes"],
            "column_sizes": [None],
            "compression": need.compression,
            "hashes": [],
            "raw_data": {"basename": need.name, "bytes": need.n_bytes, "hashes": {}},
            "samples": 1,
            "size_limit": None,
            "zip_data": need.zip_name and {"basename": need.zip_name, "bytes": need.zip_bytes, "hashes": {}},
        }
        for need in needs
    ]
    return json.dumps({"version": 2, "shards": shards})


def write_dataset(folder: Path, needs: Sequence[FileRequest], *, others: Collection[str] = ()) -> None:
    """Write an index of these files into `folder`, not the files; write `others`, of ten bytes each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").write_text(index_text(needs))
    for name in others:
        (folder / name).write_bytes(bytes(10))


def keeps_attributes(folder: Path) -> bool:
    """Whether files and folders below may have extended attributes."""
    try:
        os.setxattr(folder, "user.probe", b"")
    except (OSError, AttributeError):
        return False
    return True


def _sizes_below(folder: Path) -> dict[tuple[str, int], int]:
    """Bytes of each file below a cache folder by its path and inode; without sockets, locks and logs."""
    sizes: dict[tuple[str, int], int] = {}
    for here, folders, names in os.walk(folder):
        if ".streaming" in folders:
            folders.remove(".streaming")
        for name in names:
            path = os.path.join(here, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                sizes[path, status.st_ino] = status.st_size
    return sizes


def bytes_below(folder: Path) -> int:
    """Bytes of what is below a cache folder, with temporaries, without sockets, locks and logs.

    A file may go and another come while a scan is on its way, and the sum of one scan may be more than there ever was.
    A file that two scans found was there between them: only those count, each with the lesser size.
    """
    earlier = _sizes_below(folder)
    later = _sizes_below(folder)
    return sum(min(n_bytes, later[key]) for key, n_bytes in earlier.items() if key in later)


class Watcher:
    """Measures `bytes_below` throughout a block; `most` is the largest value so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most = 0

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self.most = max(self.most, bytes_below(self._folder))
