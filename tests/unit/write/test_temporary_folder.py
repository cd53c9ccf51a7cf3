"""Temporary folders of writers: the next writer deletes those of killed writers, and never those of living ones."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from streaming.write.temporary_folder import TemporaryFolder


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folder_of_a_killed_writer_is_deleted_by_the_next(tmp_path: Path) -> None:
    """After kill -9, with files in the folder; a living writer's folder and foreign files stay."""
    (tmp_path / "streaming-write-a-file").touch()
    (tmp_path / "other").mkdir()
    living = TemporaryFolder()
    child = os.fork()
    if child == 0:
        (Path(TemporaryFolder().path) / "shard.00000.mds").write_bytes(b"x" * 1000)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob("streaming-write-*"))) == 3
    following = TemporaryFolder()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"streaming-write-a-file", "other", Path(living.path).name, Path(following.path).name}
    for folder in (living, following):
        folder.remove()
        folder.remove()
    assert {path.name for path in tmp_path.iterdir()} == {"streaming-write-a-file", "other"}


def test_writers_that_start_together_do_not_sweep_each_other(tmp_path: Path) -> None:
    """Eight processes make and keep folders at once, again and again: none loses one of its own."""
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            folders = [TemporaryFolder() for _ in range(30)]
            os._exit(0 if all(os.path.isdir(folder.path) for folder in folders) else 1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
    TemporaryFolder().remove()
    assert list(tmp_path.iterdir()) == []
