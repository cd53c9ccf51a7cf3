"""A remote that is written anew under its URL: what the cache holds of the old version is never mixed with the new."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.cache.origin import ORIGIN_NAME
from streaming.errors import RemoteChangedError
from streaming.testing.s3 import S3Server
from streaming.testing.web import WebServer

_N = 100


@dataclass(frozen=True)
class Remote:
    """A dataset that can be written anew."""

    folder: Path
    url: str
    upload: Callable[[Path], None] | None = None

    def write(self, letter: str, n: int = _N, *, age_s: float = 0.0, **options: Any) -> None:
        """Write samples of one size that begin with `letter`, in place of what is there; files are `age_s` old."""
        write(self.folder, letter, n, age_s=age_s, **options)
        if self.upload is not None:
            time.sleep(1.1)  # dates of objects are whole seconds
            self.upload(self.folder)


def write(folder: Path, letter: str, n: int = _N, *, age_s: float = 0.0, **options: Any) -> None:
    """Write a dataset in place of what is in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    with MDSWriter(out=str(folder), columns={"i": "int", "t": "str"}, size_limit=2_000, **options) as out:
        for i in range(n):
            out.write({"i": i, "t": f"{letter}{i:05}"})
    moment_s = time.time() - age_s
    for path in folder.iterdir():
        os.utime(path, (moment_s, moment_s))


def overwrite(folder: Path, letter: str, n: int, work: Path, **options: Any) -> list[str]:
    """Replace the files of a dataset one by one, the index last, as a writer does; dates beyond any clock's error."""
    write(work, letter, n, age_s=-60, **options)
    names = sorted((path.name for path in work.iterdir()), key=lambda name: (name == "index.json", name))
    for name in names:
        (work / name).replace(folder / name)
    return names


def letters(dataset: StreamingDataset, numbers: Iterable[int] | None = None) -> str:
    """The letters of the versions that are read at these numbers, or at all."""
    numbers = range(len(dataset)) if numbers is None else numbers
    return "".join(sorted({dataset[i]["t"][0] for i in numbers}))


def opened(remote: Remote, local: Path, **options: Any) -> StreamingDataset:
    """A dataset of the remote, cached in `local`."""
    return StreamingDataset(remote=remote.url, local=str(local), batch_size=1, download_retry=2, **options)


@pytest.fixture(params=["folder", "plain", "no-etag", "weak-versions", "no-head", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """A remote in each kind of store that says something else of versions."""
    folder = tmp_path / "remote"
    if request.param == "folder":
        yield Remote(folder, str(folder))
    elif request.param == "s3":
        bucket: S3Server = request.getfixturevalue("s3_server")
        for name, value in bucket.variables().items():
            monkeypatch.setenv(name, value)
        prefix = f"versions-{os.urandom(4).hex()}"

        def upload(folder: Path) -> None:
            for path in sorted(folder.iterdir(), key=lambda path: path.name == "index.json"):
                bucket.put(f"{prefix}/{path.name}", path.read_bytes())

        yield Remote(folder, bucket.url(prefix), upload)
    else:
        with WebServer.started() as server:
            yield Remote(Path(server.folder) / "remote", server.url("remote", habit=request.param))


@pytest.fixture
def plain(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote", str(tmp_path / "remote"))


@pytest.mark.parametrize("n_cached", [0, 25, _N])
def test_a_start_reads_what_the_remote_has_now(remote: Remote, tmp_path: Path, n_cached: int) -> None:
    """Whatever lies in the cache of the old version, and though index and shards keep their sizes."""
    remote.write("A", age_s=100)
    with opened(remote, tmp_path / "local") as dataset:
        assert letters(dataset, range(max(1, n_cached))) == "A"
    remote.write("B")
    with opened(remote, tmp_path / "local") as dataset:
        assert letters(dataset) == "B"
    with opened(remote, tmp_path / "local") as dataset:
        assert letters(dataset) == "B"


@pytest.mark.parametrize("before", [{}, {"hashes": ["sha1"]}, {"compression": "zstd"}])
@pytest.mark.parametrize("after", [{}, {"hashes": ["sha1"]}, {"compression": "zstd"}, {"n": 2 * _N}])
def test_any_dataset_may_follow_any_other(
    plain: Remote, tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """With other sizes, hashes or compression; and the old one may come back."""
    local = tmp_path / "local"
    plain.write("A", age_s=100, **before)
    with opened(plain, local) as dataset:
        assert letters(dataset, range(30)) == "A"
    kept = tmp_path / "kept"
    shutil.copytree(plain.folder, kept)
    plain.write("B", **after)
    with opened(plain, local) as dataset:
        assert (letters(dataset), len(dataset)) == ("B", after.get("n", _N))
    shutil.rmtree(plain.folder)
    shutil.copytree(kept, plain.folder)  # with its dates
    with opened(plain, local) as dataset:
        assert letters(dataset) == "A"


def test_what_was_found_is_said_once(plain: Remote, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With both folders; a dataset that is as it was says nothing."""
    plain.write("A", age_s=100)
    for _ in range(2):
        with opened(plain, tmp_path / "local") as dataset:
            assert letters(dataset) == "A"
    assert "written anew" not in caplog.text
    plain.write("B")
    for _ in range(2):
        with opened(plain, tmp_path / "local") as dataset:
            assert letters(dataset) == "B"
    assert caplog.text.count("was written anew") == 1
    assert str(tmp_path / "local") in caplog.text


@pytest.mark.parametrize("options", [{}, {"hashes": ["xxh64"]}])
def test_an_index_that_was_only_touched_changes_nothing(
    plain: Remote, tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Copied again or merged again, over the same shards: nothing is fetched anew."""
    plain.write("A", age_s=100, **options)
    with opened(plain, tmp_path / "local") as dataset:
        assert letters(dataset) == "A"
    os.utime(plain.folder / "index.json")
    for _ in range(2):
        with opened(plain, tmp_path / "local") as dataset:
            assert letters(dataset) == "A"
    assert "written anew" not in caplog.text
    assert not (tmp_path / "local" / ".remotes").exists()


@pytest.mark.parametrize("gone", ["no server", "forbidden", "no index"])
def test_a_cache_is_used_when_its_store_says_nothing(
    tmp_path: Path, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Offline, without the right to look, or where the dataset was deleted: all of it is read, and one line says so."""
    local = tmp_path / "local"
    with WebServer.started() as server:
        remote = Remote(Path(server.folder) / "remote", server.url("remote"))
        remote.write("A", age_s=100)
        with opened(remote, local) as dataset:
            assert letters(dataset) == "A"
        if gone == "forbidden":
            (remote.folder / "index.json").chmod(0)
            remote.folder.chmod(0)
        elif gone == "no index":
            shutil.rmtree(remote.folder)
        if gone != "no server":
            _read_offline(remote, local)
    if gone == "no server":
        _read_offline(remote, local)
    assert caplog.text.count("may have a newer version") == (0 if gone == "forbidden" and os.geteuid() == 0 else 1)


def _read_offline(remote: Remote, local: Path) -> None:
    for _ in range(2):
        with opened(remote, local) as dataset:
            assert letters(dataset) == "A"


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_run_never_reads_two_versions(
    plain: Remote, tmp_path: Path, n_workers: int, options: dict[str, Any], has_index: bool
) -> None:
    """A remote that is written anew in mid-run, or is being written: the run ends with an error that says so."""
    plain.write("A", 1000, age_s=1000, **options)
    dataset = opened(plain, tmp_path / "local", shuffle=True, cache_limit="20kb")  # so that not all is there at once
    loader = StreamingDataLoader(dataset, batch_size=1, num_workers=n_workers, collate_fn=lambda samples: samples[0])
    batches = iter(loader)
    read = [next(batches)["t"][0] for _ in range(10)]
    names = overwrite(plain.folder, "B", 1000, tmp_path / "new", **options)
    assert names[-1] == "index.json"
    if not has_index:
        (plain.folder / "index.json").unlink()
    with pytest.raises(RemoteChangedError, match=r"anew.*while this run reads|while this run reads.*anew"):
        read.extend(sample["t"][0] for sample in batches)
    assert set(read) == {"A"}
    assert len(read) < 1000
    dataset.close()


def test_a_shard_that_is_written_while_the_run_reads_is_refused(plain: Remote, tmp_path: Path) -> None:
    """Shards come before their index, so the index alone would tell too late."""
    n = 2000
    plain.write("A", n, age_s=1000)
    with opened(plain, tmp_path / "local") as dataset:
        assert letters(dataset, range(3)) == "A"
        shutil.copy2(plain.folder / "index.json", tmp_path)
        overwrite(plain.folder, "B", n, tmp_path / "new")
        (tmp_path / "index.json").replace(plain.folder / "index.json")  # with its date: not written yet
        with pytest.raises(RemoteChangedError, match="it seems to be written anew"):
            letters(dataset, [n - 1])


def test_shards_that_are_younger_than_their_index_are_read(remote: Remote, tmp_path: Path) -> None:
    """A dataset that was copied in another order than it was written."""
    remote.write("A", age_s=500)
    if remote.upload is None:
        os.utime(remote.folder / "index.json", (time.time() - 1000,) * 2)
    for _ in range(2):
        with opened(remote, tmp_path / "local", shuffle=True) as dataset:
            assert letters(dataset) == "A"
            assert len(list(dataset)) == _N
    assert not (tmp_path / "local" / ".remotes").exists()


def test_a_cache_without_a_note_of_its_version_is_taken_and_noted(plain: Remote, tmp_path: Path) -> None:
    """One that the predecessor filled, or a user by hand: the index tells whether it is this dataset's."""
    plain.write("A", age_s=100)
    shutil.copytree(plain.folder, tmp_path / "same")
    with opened(plain, tmp_path / "same") as dataset:
        assert letters(dataset) == "A"
    assert "index" in (tmp_path / "same" / ORIGIN_NAME).read_text()
    shutil.copytree(plain.folder, tmp_path / "other")
    plain.write("B", 2 * _N)
    with opened(plain, tmp_path / "other") as dataset:
        assert letters(dataset) == "B"


def test_an_index_that_was_deleted_from_the_cache_leaves_no_old_shards(plain: Remote, tmp_path: Path) -> None:
    """The note says of which version the shards are, though the index has gone."""
    plain.write("A", age_s=100)
    local = tmp_path / "local"
    with opened(plain, local) as dataset:
        assert letters(dataset) == "A"
    (local / "index.json").unlink()
    plain.write("B")
    with opened(plain, local) as dataset:
        assert letters(dataset) == "B"
