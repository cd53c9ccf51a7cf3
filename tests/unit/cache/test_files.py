"""How files of the cache appear, and how the temporaries of dead writers are swept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.cache.files import Temporaries, is_present, make_folder, sweep
from streaming.errors import NoRoomError, StorageError


@pytest.fixture
def temporaries() -> Temporaries:
    return Temporaries(umask=0o022)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, temporaries: Temporaries) -> None:
    """Only placing shows it; a block that ends without placing leaves nothing."""
    with temporaries.begin(str(tmp_path), "a", n_bytes=3) as temporary:
        temporary.write(b"ab")
        temporary.write(memoryview(b"c"))
        assert not (tmp_path / "a").exists()
        temporary.place()
    assert (tmp_path / "a").read_bytes() == b"abc"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644
    with contextlib.suppress(ValueError), temporaries.begin(str(tmp_path), "b", n_bytes=3) as temporary:
        temporary.write(b"ab")
        raise ValueError
    with temporaries.begin(str(tmp_path), "c", n_bytes=-1):
        pass
    assert os.listdir(tmp_path) == ["a"]


def test_room_that_was_not_needed_is_no_part_of_the_file(tmp_path: Path, temporaries: Temporaries) -> None:
    """Its size is the number of bytes written."""
    with temporaries.begin(str(tmp_path), "a", n_bytes=1000) as temporary:
        temporary.write(b"abc")
        temporary.place()
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_losing_a_race_loses_nothing(tmp_path: Path, temporaries: Temporaries) -> None:
    """Two writers of one file: both succeed, one file remains."""
    with (
        temporaries.begin(str(tmp_path), "a", n_bytes=1) as one,
        temporaries.begin(str(tmp_path), "a", n_bytes=1) as two,
    ):
        for temporary in (one, two):
            temporary.write(b"x")
            temporary.place()
    assert os.listdir(tmp_path) == ["a"]


def test_new_folders_are_like_the_cache(tmp_path: Path, temporaries: Temporaries) -> None:
    """They take the mode and group of the root, so that its other users can write too."""
    tmp_path.chmod(0o2775)
    with temporaries.begin(str(tmp_path), "deep/down/a", n_bytes=0) as temporary:
        temporary.place()
    for folder in ("deep", "deep/down"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o2775
        assert (tmp_path / folder).stat().st_gid == tmp_path.stat().st_gid


def test_a_link_out_of_the_cache_is_refused(tmp_path: Path, temporaries: Temporaries) -> None:
    """Nothing is written outside the cache folder."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="link"):
        make_folder(str(tmp_path / "cache"), "sub")
    with pytest.raises(StorageError, match="link"), temporaries.begin(str(tmp_path / "cache"), "sub/a", n_bytes=0):
        pass
    assert os.listdir(tmp_path / "outside") == []


def test_a_sweep_takes_what_nobody_writes_and_nothing_else(tmp_path: Path, temporaries: Temporaries) -> None:
    """A dead writer's lock has gone with it; other files are left, however close their names."""
    (tmp_path / "sub").mkdir()
    dead = tmp_path / "sub" / ".shard.0123456789abcdef.tmp"
    dead.write_bytes(b"half")
    others = [tmp_path / ".hidden.tmp", tmp_path / "shard.0123456789abcdef.tmp", tmp_path / "shard"]
    for other in others:
        other.write_bytes(b"mine")
    with temporaries.begin(str(tmp_path), "a", n_bytes=3) as temporary:
        assert sweep(str(tmp_path)) == 1
        temporary.write(b"abc")
        temporary.place()
    assert not dead.exists()
    assert all(other.exists() for other in others)
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_a_temporary_of_another_process_is_left_until_it_is_dead(tmp_path: Path) -> None:
    """Its lock says that it lives; the kernel frees the lock when it dies."""
    path = tmp_path / ".shard.0123456789abcdef.tmp"
    code = (
        f"import fcntl, sys; f = open({str(path)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('locked', flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"locked\n"
        assert sweep(str(tmp_path)) == 0
        writer.kill()
        writer.wait()
    assert sweep(str(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


def test_closing_deletes_all_and_lets_nothing_begin(tmp_path: Path, temporaries: Temporaries) -> None:
    """A writer that goes on writes a file without a name, and cannot place it."""
    with temporaries.begin(str(tmp_path), "a", n_bytes=3) as temporary:
        temporaries.close()
        assert os.listdir(tmp_path) == []
        temporary.write(b"abc")
        with pytest.raises(StorageError):
            temporary.place()
    with pytest.raises(StorageError, match="ending"), temporaries.begin(str(tmp_path), "b", n_bytes=0):
        pass
    assert os.listdir(tmp_path) == []


def test_no_room_is_its_own_kind_of_error(tmp_path: Path, temporaries: Temporaries) -> None:
    """A file larger than any disk is refused before a byte is moved, and nothing is left."""
    n_bytes = 1 << 60
    with pytest.raises((NoRoomError, StorageError), match="a"), temporaries.begin(str(tmp_path), "a", n_bytes=n_bytes):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("n_bytes", "expected"), [(3, True), (-1, True), (4, False), (0, False)])
def test_a_file_is_present_with_the_size_of_the_index(tmp_path: Path, n_bytes: int, expected: bool) -> None:
    """With any size if none is stated; a folder never is."""
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    assert is_present(str(tmp_path / "a"), n_bytes) is expected
    assert not is_present(str(tmp_path / "b"), n_bytes)
    assert not is_present(str(tmp_path / "folder"), -1)


def test_a_temporary_is_locked_while_it_is_written(tmp_path: Path, temporaries: Temporaries) -> None:
    """The lock tells it from rubbish."""
    with temporaries.begin(str(tmp_path), "a", n_bytes=3):
        (name,) = os.listdir(tmp_path)
        with open(tmp_path / name, "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
