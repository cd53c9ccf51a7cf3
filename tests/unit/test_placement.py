"""How files appear: names of temporaries, locks, and renames that show a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.placement import (
    UnplacedFile,
    delete_if_abandoned,
    is_temporary,
    placed_file,
    temporary_beside,
    write_file,
)

FINAL_NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=255)


@given(folder=st.sampled_from(["", "/", "/data/", "a/b/"]), name=FINAL_NAMES)
def test_a_temporary_is_hidden_short_enough_and_known_by_its_name(folder: str, name: str) -> None:
    """It lies in the folder of the file, whatever the name of that file, and no two are the same."""
    temporary = temporary_beside(folder + name)
    assert temporary.rpartition("/")[0] == (folder + name).rpartition("/")[0]
    last = temporary.removeprefix(folder)
    assert last.startswith(".")
    assert len(os.fsencode(last)) <= 255
    assert is_temporary(temporary)
    assert temporary_beside(folder + name) != temporary


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".shard.00000.mds.0123456789abcdef.tmp", True),
        (".streaming-source.0123456789abcdef.tmp", True),
        ("..streaming-source.0123456789abcdef.tmp", True),
        ("folder/.a\n.0123456789abcdef.tmp", True),
        ("shard.00000.mds.0123456789abcdef.tmp", False),
        (".0123456789abcdef.tmp", False),
        (".a.0123456789ABCDEF.tmp", False),
        (".mine.tmp", False),
        (".a.0123456789abcdef.tmp/shard.00000.mds", False),
    ],
)
def test_no_other_name_is_taken_for_a_temporary(name: str, expected: bool) -> None:
    """A user's hidden file must never be swept, nor be missing in a list."""
    assert is_temporary(name) is expected


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """An error while writing leaves the former file as it was, and no temporary."""
    path = tmp_path / "x"
    for text in (b"old", b"new"):
        with placed_file(str(path)) as file:
            file.write(text)
            assert not path.exists() or path.read_bytes() == b"old"
    with contextlib.suppress(ZeroDivisionError), placed_file(str(path)) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_that_cannot_take_its_name_leaves_no_temporary(tmp_path: Path) -> None:
    """A folder stands in its place; the error is the system's."""
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(str(tmp_path / "x"), b"data")
    assert os.listdir(tmp_path) == ["x"]


def test_a_placed_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    """The umask decides, as it does for `open`."""
    write_file(str(tmp_path / "x"), b"data")
    (tmp_path / "y").touch()
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == stat.S_IMODE((tmp_path / "y").stat().st_mode)


def test_a_temporary_is_not_swept_before_its_writer_ends(tmp_path: Path) -> None:
    """Its lock protects it until it has its final name, also while the written data are flushed."""
    with placed_file(str(tmp_path / "x")) as file:
        (name,) = os.listdir(tmp_path)
        assert is_temporary(name)
        assert not delete_if_abandoned(str(tmp_path / name))
        file.write(b"data")
        file.close()
        assert not delete_if_abandoned(str(tmp_path / name))
    assert (tmp_path / "x").read_bytes() == b"data"


def test_a_temporary_of_a_killed_writer_is_abandoned(tmp_path: Path) -> None:
    """The kernel frees the lock of a process that dies, however it dies."""
    code = (
        "import os, signal, sys; from streaming.placement import placed_file\n"
        "with placed_file(sys.argv[1]):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], env=environment, timeout=60, check=False)
    (name,) = os.listdir(tmp_path)
    assert delete_if_abandoned(str(tmp_path / name))
    assert not delete_if_abandoned(str(tmp_path / name))
    assert os.listdir(tmp_path) == []


def test_the_last_of_many_writers_wins_and_every_reader_sees_a_whole_file(tmp_path: Path) -> None:
    """Eight threads replace one file while it is swept for temporaries: none fails, and no mixture appears."""
    path = tmp_path / "x"
    write_file(str(path), bytes(1000))
    errors: list[BaseException] = []

    def write(n: int) -> None:
        try:
            for _ in range(50):
                write_file(str(path), bytes([n]) * 1000)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert len(set(path.read_bytes())) == 1
        for name in filter(is_temporary, os.listdir(tmp_path)):
            delete_if_abandoned(str(tmp_path / name))
    assert errors == []
    assert os.listdir(tmp_path) == ["x"]


def test_one_of_several_files_is_placed_if_absent(tmp_path: Path) -> None:
    """The first keeps the name; `place` replaces it."""
    for n in range(3):
        with contextlib.closing(UnplacedFile(str(tmp_path / "x"))) as unplaced:
            os.write(unplaced.file, b"%d" % n)
            assert unplaced.place_if_absent() is (n == 0)
            assert (tmp_path / "x").read_bytes() == b"0"
    with contextlib.closing(UnplacedFile(str(tmp_path / "x"))) as unplaced:
        unplaced.place()
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b""
