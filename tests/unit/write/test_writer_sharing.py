"""A writer in other hands than those that made it: threads, forked children, copies, another working directory."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset
from streaming.errors import WriteError
from streaming.storage.url import Folder, parse_remote
from streaming.write.output_location import parse_out
from streaming.write.writers import MDSWriter
from support import golden

COLUMNS = {"n": "int", "text": "str"}


def sample(n: int) -> dict[str, Any]:
    """Sample n, of up to 50 bytes."""
    return {"n": n, "text": "x" * (n % 50)}


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads are switched as often as can be, so that what is not guarded breaks."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
@pytest.mark.parametrize("size_limit", [300, 3_000, None])
@pytest.mark.parametrize("compression", [None, "zstd:1"])
def test_threads_share_a_writer(tmp_path: Path, size_limit: int | None, compression: str | None) -> None:
    """Each sample of each thread is stored once, and those of one thread in its order."""
    n_threads, n_each = 8, 400
    folder = os.path.join(tmp_path, "data")
    with MDSWriter(columns=COLUMNS, out=folder, size_limit=size_limit, compression=compression) as writer:

        def job(first: int) -> None:
            for n in range(first, n_threads * n_each, n_threads):
                writer.write(sample(n))

        threads = [threading.Thread(target=job, args=(first,)) for first in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = golden.read_samples(folder)
    assert sorted(found, key=lambda one: one["n"]) == [sample(n) for n in range(n_threads * n_each)]
    for first in range(n_threads):
        own = [one["n"] for one in found if one["n"] % n_threads == first]
        assert own == list(range(first, n_threads * n_each, n_threads))


@pytest.mark.usefixtures("hasty_threads")
def test_a_thread_that_comes_after_finish_is_refused(tmp_path: Path) -> None:
    """What `write` took is stored, and what came too late is refused: nothing is lost in silence."""
    folder = os.path.join(tmp_path, "data")
    writer = MDSWriter(columns=COLUMNS, out=folder, size_limit=300)
    taken: list[list[int]] = [[] for _ in range(4)]
    is_busy = threading.Barrier(5)

    def job(thread: int) -> None:
        for n in range(thread, 10**9, 4):
            try:
                writer.write(sample(n))
            except WriteError:
                return
            taken[thread].append(n)
            if len(taken[thread]) == 20:
                is_busy.wait(60)

    threads = [threading.Thread(target=job, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    is_busy.wait(60)
    writer.finish()
    for thread in threads:
        thread.join()
    assert sorted(one["n"] for one in golden.read_samples(folder)) == sorted(n for own in taken for n in own)


CHILDREN = {
    "write": "writer.write(sample(1000))",
    "finish": "writer.finish()",
    "leave": "writer.__exit__(None, None, None)",
    "raise": "raise ZeroDivisionError",
    "exit": "sys.exit(0)",
    "collect": "del writer; gc.collect(); sys.exit(0)",
    "at_exit": "os._exit(0)",
}
PARENT = """
import gc, os, sys
from streaming import MDSWriter
from streaming.errors import WriteError

def sample(n):
    return {{"n": n, "text": "x" * (n % 50)}}

def in_child(writer):
    {child}

out = {out!r}
with MDSWriter(columns={{"n": "int", "text": "str"}}, out=out, size_limit=300) as writer:
    for n in range(200):
        writer.write(sample(n))
        if n in (0, 99):
            pid = os.fork()
            if not pid:
                del out
                try:
                    with writer:
                        in_child(writer)
                except WriteError as error:
                    assert f"process {{os.getppid()}}" in str(error), error
                    assert "merge_index" in str(error)
                    sys.exit(3)
                except ZeroDivisionError:
                    sys.exit(4)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("child", CHILDREN)
def test_a_forked_child_cannot_spoil_its_parents_writer(tmp_path: Path, child: str, is_pair: bool) -> None:
    """It is refused when it writes or finishes, and however it ends the parent's dataset is whole."""
    local, remote = os.path.join(tmp_path, "local"), os.path.join(tmp_path, "remote")
    script = PARENT.format(child=CHILDREN[child], out=(local, remote) if is_pair else remote)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    code = {"raise": "4", "exit": "0", "collect": "0", "at_exit": "0"}.get(child, "3")
    assert done.stdout.split() == [code] * 2
    assert golden.read_samples(remote) == [sample(n) for n in range(200)]
    assert os.listdir(tmp_path) == ["remote"]


COPIES: dict[str, Callable[[Any], object]] = {
    "pickle": pickle.dumps,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", COPIES)
def test_a_writer_is_not_copied(tmp_path: Path, how: str) -> None:
    """Two writers of one folder would replace each other's shards. The error is also pickle's TypeError."""
    folder = os.path.join(tmp_path, "data")
    with MDSWriter(columns=COLUMNS, out=folder) as writer:
        writer.write(sample(0))
        with pytest.raises(WriteError, match="merge_index") as caught:
            COPIES[how](writer)
        assert isinstance(caught.value, TypeError)
        writer.write(sample(1))
    assert golden.read_samples(folder) == [sample(0), sample(1)]


@pytest.mark.parametrize("keep_local", [False, True])
@pytest.mark.parametrize("out", ["data", "./a/../data", ("staging", "data"), ("../work/staging", "data"), Path("data")])
def test_a_relative_out_is_below_the_folder_where_the_writer_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Any, keep_local: bool
) -> None:
    """A later chdir changes nothing, for shards, uploads, the index and what is deleted at the end."""
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    for folder in (work, elsewhere):
        folder.mkdir()
    monkeypatch.chdir(work)
    with MDSWriter(columns=COLUMNS, out=out, size_limit=300, keep_local=keep_local) as writer:
        for n in range(100):
            writer.write(sample(n))
            if n == 50:
                monkeypatch.chdir(elsewhere)
    assert golden.read_samples(str(work / "data")) == [sample(n) for n in range(100)]
    assert not os.listdir(elsewhere)
    assert os.path.exists(work / "staging") == (keep_local and isinstance(out, tuple))


def test_every_form_of_out_is_fixed_when_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are absolute, `~` means the home folder of that moment, and a URL stays as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    here, home = str(tmp_path), str(tmp_path / "home")
    assert parse_out("a").local == f"{here}/a"
    assert parse_out("~/a").local == f"{home}/a"
    assert parse_out(("a", "~/b")).local == f"{here}/a"
    assert parse_out(("a", "~/b")).remote == Folder(f"{home}/b")
    assert parse_out(("a", "./a")).remote is None
    assert parse_out(("a", "s3://b/c")).local == f"{here}/a"
    assert parse_out(("a", "s3://b/c")).remote == parse_remote("s3://b/c")


def test_a_relative_temporary_directory_is_fixed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`TMPDIR=tmp`: shards on their way to a remote are found after a chdir."""
    script = (
        "import os, sys, tempfile\n"
        "from streaming.write.temporary_folder import TemporaryFolder\n"
        "folder = TemporaryFolder()\n"
        "os.chdir('/')\n"
        "assert os.path.isdir(folder.path), folder.path\n"
        "folder.remove()\n"
    )
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": "tmp", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, timeout=60)
    assert not os.listdir(tmp_path / "tmp")


def test_readers_are_fixed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A LocalDataset of a relative folder goes on reading after a chdir."""
    monkeypatch.chdir(tmp_path)
    with MDSWriter(columns=COLUMNS, out="data", size_limit=300) as writer:
        for n in range(100):
            writer.write(sample(n))
    dataset = LocalDataset("data")
    monkeypatch.chdir("/")
    assert [dataset[n] for n in range(100)] == [sample(n) for n in range(100)]
