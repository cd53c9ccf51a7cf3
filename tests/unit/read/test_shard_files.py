"""Maps hold no descriptor and go with their last view."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from streaming.mounts import is_on_network
from streaming.read.shards.files import map_file


def _n_maps(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_a_map_holds_no_descriptor_and_goes_with_its_last_view(tmp_path: Path) -> None:
    """A thousand maps open no descriptor; a slice keeps its map alive, nothing else does."""
    path = tmp_path / "file"
    content = os.urandom(10_000)
    path.write_bytes(content)
    gc.collect()
    n_open = len(os.listdir("/proc/self/fd"))
    views = []
    for _ in range(1000):
        fd = os.open(path, os.O_RDONLY)
        views.append(map_file(fd, len(content)))
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == n_open
    assert all(bytes(view) == content for view in views[:10])
    piece = views[0][100:200]
    views.clear()
    gc.collect()
    assert _n_maps(path) == 1
    assert piece.tobytes() == content[100:200]
    del piece
    gc.collect()
    assert _n_maps(path) == 0


def test_a_map_is_read_only(tmp_path: Path) -> None:
    """No reader can change a cached shard through what it is given."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with path.open("rb") as file:
        view = map_file(file.fileno(), 3)
    with pytest.raises(TypeError):
        view[0] = 0


def test_what_cannot_be_mapped_is_an_os_error(tmp_path: Path) -> None:
    """An empty file is an empty view; a bad descriptor names its error."""
    path = tmp_path / "file"
    path.touch()
    with path.open("rb") as file:
        assert map_file(file.fileno(), 0).tobytes() == b""
    with pytest.raises(OSError, match="descriptor"):
        map_file(10_000, 5)


def test_network_file_systems_are_known_by_their_mount(tmp_path: Path) -> None:
    """The innermost mount that covers a folder decides."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:40 / /data rw shared:1 - nfs4 server:/x rw\n"
        "3 2 0:41 / /data/fast rw - xfs /dev/sdb rw\n"
        "4 1 0:42 / /my\\040bucket rw - fuse.s3fs s3fs rw\n"
    )
    answers = {
        folder: is_on_network(folder, str(mounts))
        for folder in ("/home/x", "/data", "/data/sub/x", "/data/fast/x", "/database", "/my bucket/x")
    }
    assert answers == {
        "/home/x": False,
        "/data": True,
        "/data/sub/x": True,
        "/data/fast/x": False,
        "/database": False,
        "/my bucket/x": True,
    }
