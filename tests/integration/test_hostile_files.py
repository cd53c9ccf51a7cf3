"""What others may put where a file should be: pipes, devices, sockets, folders and links never hang or lead outside."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, MDSWriter, StreamingDataset
from streaming.cache.files import make_folder, table_name
from streaming.cache.origin import ORIGIN_NAME
from streaming.errors import StorageError, StreamingError
from streaming.fetch.wire.rendezvous import Rendezvous, RendezvousError, open_own, rendezvous_in_root
from support.fetcher_world import wait_until

N = 30


def write(folder: Path, **options: Any) -> None:
    with MDSWriter(out=str(folder), columns={"i": "int"}, size_limit=200, **options) as out:
        for i in range(N):
            out.write({"i": i})


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)
        try:
            listener.bind(path.name)
        finally:
            os.chdir("/")


def _folder(path: Path) -> None:
    path.mkdir()


def _link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


_THINGS: list[Callable[[Path], None]] = [_pipe, _socket, _folder, _link_to_a_pipe, _link_to_itself, _zeros]

_READ = """
import faulthandler, json, sys
faulthandler.dump_traceback_later(100, exit=True)
from streaming import LocalDataset, StreamingDataset
from streaming.errors import StreamingError
for remote, local in json.loads(sys.argv[1]):
    try:
        if remote == "LocalDataset":
            found = [sample["i"] for sample in LocalDataset(local)]
        else:
            options = {"batch_size": 1, "download_timeout": 20, "download_retry": 1}
            with StreamingDataset(remote=remote, local=local, **options) as dataset:
                found = [sample["i"] for sample in dataset]
        print("read", found == list(range(30)))
    except StreamingError as error:
        print("refused", type(error).__name__)
"""


def outcomes(*ways: tuple[str | None, Path]) -> list[str]:
    """What came of reading these remotes by these folders, in a process of its own, which ends by itself in any case.

    The remote "LocalDataset" stands for that class.
    """
    given = json.dumps([(remote, str(local)) for remote, local in ways])
    done = subprocess.run([sys.executable, "-c", _READ, given], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return [line.split()[0] if line != "read False" else line for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["index.json", "shard.00001.mds"])
@pytest.mark.parametrize("thing", _THINGS)
def test_a_source_with_such_a_thing_is_refused(tmp_path: Path, name: str, thing: Callable[[Path], None]) -> None:
    """At once, with an error of ours: in place, as a remote that is a folder, and by LocalDataset."""
    write(tmp_path / "data")
    (tmp_path / "data" / name).unlink()
    thing(tmp_path / "data" / name)
    data = tmp_path / "data"
    found = outcomes(("LocalDataset", data), (None, data), (str(data), tmp_path / "cache"))
    assert found == ["refused"] * 3


@pytest.mark.parametrize("name", ["index.json", ORIGIN_NAME, "shard.00001.mds", table_name("shard.00001.mds")])
@pytest.mark.parametrize("thing", [_pipe, _socket, _folder, _link_to_a_pipe])
def test_a_cache_with_such_a_thing_never_hangs(tmp_path: Path, name: str, thing: Callable[[Path], None]) -> None:
    """It is read past it, or refused where the thing cannot be replaced."""
    write(tmp_path / "data")
    with StreamingDataset(remote=str(tmp_path / "data"), local=str(tmp_path / "cache"), batch_size=1) as dataset:
        assert [sample["i"] for sample in dataset] == list(range(N))
        wait_until("all shards have come", lambda: len(list((tmp_path / "cache").glob("*.mds"))) == dataset.num_shards)
    with_table = tmp_path / "cache" / name
    with_table.unlink(missing_ok=True)
    if name == table_name("shard.00001.mds"):
        (tmp_path / "cache" / "shard.00001.mds").unlink()
    thing(with_table)
    (found,) = outcomes((str(tmp_path / "data"), tmp_path / "cache"))
    assert found == "read" or (found == "refused" and thing is _folder)


def test_names_that_no_file_system_takes_are_refused_by_name(tmp_path: Path) -> None:
    """The system's error comes as one of ours that names stream and shard."""
    write(tmp_path / "data")
    index = tmp_path / "data" / "index.json"
    index.write_text(index.read_text().replace("shard.00001.mds", "x" * 300))
    data = str(tmp_path / "data")
    for remote, local in ((None, data), (data, str(tmp_path / "c"))):
        with pytest.raises(StreamingError, match="x" * 300):
            list(StreamingDataset(remote=remote, local=local, batch_size=1))
    with pytest.raises(StreamingError, match="x" * 300):
        LocalDataset(data)[:]


@pytest.mark.parametrize("relative", ["sub/new", "sub", "inside/../sub/new", "inside/sub/deep"])
def test_no_folder_is_made_outside_of_the_cache(tmp_path: Path, relative: str) -> None:
    """Through a link, at any depth; a link that stays inside is one way in."""
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    (cache / "inside").mkdir(parents=True)
    outside.mkdir(mode=0o750)
    (cache / "sub").symlink_to(outside)
    (cache / "inside" / "sub").symlink_to(outside)
    mode = stat.S_IMODE(outside.stat().st_mode)
    with pytest.raises(StorageError, match="leads out of the cache folder"):
        make_folder(str(cache), relative)
    assert list(outside.iterdir()) == []
    assert stat.S_IMODE(outside.stat().st_mode) == mode
    (cache / "way").symlink_to("inside")
    make_folder(str(cache), "way/new")
    assert (cache / "inside" / "new").is_dir()


# --- the private folder of the fetcher


def _link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def _hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def _no_file(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def _open_folder(path: Path, victim: Path) -> None:
    path.parent.chmod(0o777)


def _linked_folder(path: Path, victim: Path) -> None:
    real = path.parent.with_name("moved")
    path.parent.rename(real)
    path.parent.symlink_to(real)


@pytest.mark.parametrize("swap", [_link, _hard_link, _no_file, _open_folder, _linked_folder])
@pytest.mark.parametrize("file", ["log", "start", "lock"])
def test_the_fetcher_writes_no_file_of_others(tmp_path: Path, file: str, swap: Callable[[Path, Path], None]) -> None:
    """Whoever swaps its private folder, or a file in it, keeps it from serving there, and no file is touched."""
    rendezvous = rendezvous_in_root(str(tmp_path / "cache"), {})
    victim = tmp_path / "precious"
    victim.write_bytes(b"x" * 100)
    path = Path(getattr(rendezvous, file))
    swap(path, victim)
    with pytest.raises((RendezvousError, OSError)):
        os.close(open_own(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND))
    assert victim.read_bytes() == b"x" * 100


def test_a_run_goes_on_where_its_private_folder_was_swapped(tmp_path: Path) -> None:
    """It meets its fetcher elsewhere."""
    write(tmp_path / "data")
    cache = tmp_path / "cache"
    first = rendezvous_in_root(str(cache), dict(os.environ))
    victim = tmp_path / "precious"
    victim.write_bytes(b"x" * (2 << 20))
    Path(first.log).symlink_to(victim)
    with StreamingDataset(remote=str(tmp_path / "data"), local=str(cache), batch_size=1) as dataset:
        assert [sample["i"] for sample in dataset] == list(range(N))
    assert victim.stat().st_size == 2 << 20


def test_others_cannot_move_a_private_folder(tmp_path: Path) -> None:
    """Where everybody may write the cache, the folder for all private ones lets each move only what is theirs."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    place: Rendezvous = rendezvous_in_root(str(cache), {})
    common = Path(place.folder).parent
    assert common.stat().st_mode & stat.S_ISVTX
    shutil.rmtree(common)
