"""The life of a writer: which files lie where, when, and after which failure."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import DirectoryNotEmptyError, OptionError, ValueRangeError, WriteError
from streaming.storage.url import Folder, parse_remote
from streaming.write.builder import ShardBuilder
from streaming.write.output_location import OutputLocation, parse_out
from streaming.write.pipeline import ShardPipeline, ShardPlan
from streaming.write.uploader import FolderUploader, open_uploader
from streaming.write.writers import MDSWriter
from support import golden

COLUMNS = {"n": "int", "text": "str"}


def sample(n: int) -> dict[str, Any]:
    """Sample n, of about 50 bytes."""
    return {"n": n, "text": f"sample {n} " * 4}


def write_all(n_samples: int, **arguments: Any) -> None:
    """Write samples 0 to n_samples - 1."""
    fill(MDSWriter(columns=COLUMNS, **arguments), n_samples)


def fill(writer: MDSWriter, n_samples: int) -> None:
    """Write samples 0 to n_samples - 1 and finish."""
    with writer:
        for n in range(n_samples):
            writer.write(sample(n))


def fill_and_fail(writer: MDSWriter) -> None:
    """Write some shards, then leave the block by an exception."""
    with writer:
        for n in range(40):
            writer.write(sample(n))
        raise ZeroDivisionError


def files_of(folder: Any) -> list[str]:
    """All files below a folder."""
    return sorted(
        os.path.relpath(os.path.join(path, name), folder) for path, _, names in os.walk(folder) for name in names
    )


@given(
    n_samples=st.integers(0, 60),
    compression=st.sampled_from([None, "", "zstd", "gz:1", "snappy", "br:3", "bz2"]),
    hashes=st.sampled_from([None, [], ["md5"], ["sha1", "xxh64"]]),
    size_limit=st.sampled_from([None, 0, "", 1, 500, "1kb", 1 << 26, 700.5]),
    max_workers=st.sampled_from([None, 1, 3]),
)
@settings(max_examples=40)
def test_what_is_written_is_read(tmp_path_factory: Any, n_samples: int, max_workers: Any, **arguments: Any) -> None:
    """Whatever the arguments, all samples come back in order, and the same call writes the same bytes again."""
    base = tmp_path_factory.mktemp("written")
    for out in ("a", "b"):
        write_all(n_samples, out=os.path.join(base, out), max_workers=max_workers, **arguments)
        max_workers = 2
    assert golden.read_samples(os.path.join(base, "a")) == [sample(n) for n in range(n_samples)]
    names = files_of(os.path.join(base, "a"))
    assert names == files_of(os.path.join(base, "b"))
    for name in names:
        assert golden.read_file(base, "a", name) == golden.read_file(base, "b", name)


def test_a_pair_of_folders_moves_files_to_the_second(tmp_path: Any) -> None:
    """Without keep_local nothing stays in the first; with it both hold every file."""
    for keep_local in (False, True):
        local, remote = (os.path.join(tmp_path, f"{name}-{keep_local}") for name in ("local", "remote"))
        write_all(50, out=(local, remote), keep_local=keep_local, size_limit=500, compression="zstd")
        assert golden.read_samples(remote) == [sample(n) for n in range(50)]
        assert os.path.exists(local) == keep_local
        if keep_local:
            assert files_of(local) == files_of(remote)


def test_a_tilde_is_the_home_folder_wherever_it_stands(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same folder for writing, for uploading and for emptying."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write_all(3, out="~/a")
    write_all(4, out="~/a", exist_ok=True)
    write_all(5, out=("~/b", "~/c"))
    assert files_of(tmp_path) == ["a/index.json", "a/shard.00000.mds", "c/index.json", "c/shard.00000.mds"]


def test_out_is_a_folder_a_url_or_a_pair() -> None:
    """A pair that names one folder twice is a folder."""
    assert parse_out("/a") == OutputLocation("/a", None)
    assert parse_out("s3://b/c") == OutputLocation(None, parse_remote("s3://b/c"))
    assert parse_out("dbfs:/Volumes/x") == OutputLocation(None, parse_remote("dbfs:/Volumes/x"))
    assert parse_out(("/a", "gs://b")) == OutputLocation("/a", parse_remote("gs://b"))
    assert parse_out(("/a", "/a/../a")) == OutputLocation("/a", None)
    wrongs: list[Any] = ["", 5, ("/a",), ("s3://a", "/b"), ("/a", ""), None, "nonsense://b/c"]
    for wrong in wrongs:
        with pytest.raises(OptionError, match=r"out|Invalid Cloud provider prefix"):
            parse_out(wrong)


def test_unknown_schemes_are_refused_before_anything_is_made(tmp_path: Any) -> None:
    """The error says so in the predecessor's words."""
    for scheme in ("tape", "nonsense", "file"):
        with pytest.raises(OptionError, match="Invalid Cloud provider prefix"):
            MDSWriter(columns=COLUMNS, out=(os.path.join(tmp_path, "x"), f"{scheme}://host/x"))
    with pytest.raises(OptionError, match="Invalid Writer argument"):
        MDSWriter(columns=COLUMNS, out=os.path.join(tmp_path, "x"), colour="red")
    wrongs: list[dict[str, Any]] = [{"retry": 0}, {"max_workers": 0}, {"hashes": "sha1"}, {"size_limit": "1.5"}]
    for wrong in wrongs:
        with pytest.raises(OptionError):
            MDSWriter(columns=COLUMNS, out=os.path.join(tmp_path, "x"), **wrong)
    assert not os.listdir(tmp_path)


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Any) -> None:
    """A writer never adds to files that are there already."""
    folder = os.path.join(tmp_path, "x")
    write_all(3, out=folder)
    with pytest.raises(DirectoryNotEmptyError, match="Directory is not empty"):
        MDSWriter(columns=COLUMNS, out=folder)
    assert golden.read_samples(folder) == [sample(n) for n in range(3)]


def test_exist_ok_empties_the_folder_and_nothing_else(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its contents are deleted, links are not followed, and a link, a home folder or the root is not emptied."""
    folder, outside = os.path.join(tmp_path, "x"), os.path.join(tmp_path, "outside")
    os.makedirs(os.path.join(folder, "sub"))
    os.makedirs(outside)
    for place in (os.path.join(folder, "sub", "old"), os.path.join(folder, "old"), os.path.join(outside, "kept")):
        with open(place, "w") as file:
            file.write("x")
    os.symlink(outside, os.path.join(folder, "link"))
    os.symlink(outside, os.path.join(folder, "sub", "link"))
    write_all(3, out=folder, exist_ok=True)
    assert files_of(folder) == ["index.json", "shard.00000.mds"]
    assert files_of(outside) == ["kept"]
    os.symlink(outside, os.path.join(tmp_path, "alias"))
    monkeypatch.setenv("HOME", outside)
    for wrong in (os.path.join(tmp_path, "alias"), outside, "~", "/"):
        with pytest.raises(OptionError, match="exist_ok"):
            MDSWriter(columns=COLUMNS, out=wrong, exist_ok=True)
    assert files_of(outside) == ["kept"]


def test_leaving_by_an_exception_writes_no_index(tmp_path: Any) -> None:
    """The error comes through. Shards may be left, but no reader takes them for a dataset."""
    local, remote = os.path.join(tmp_path, "local"), os.path.join(tmp_path, "remote")
    for out in (local, (os.path.join(tmp_path, "l"), remote)):
        writer = MDSWriter(columns=COLUMNS, out=out, size_limit=300)
        with pytest.raises(ZeroDivisionError):
            fill_and_fail(writer)
        with pytest.raises(WriteError, match="left by an exception"):
            writer.write(sample(0))
        with pytest.raises(WriteError, match="left by an exception"):
            writer.finish()
    assert "index.json" not in files_of(tmp_path)
    assert not [name for name in files_of(tmp_path) if name.endswith(("index.json", ".tmp"))]


def test_a_bad_sample_leaves_the_writer_as_it_was(tmp_path: Any) -> None:
    """A caller that catches the error may go on with the next sample."""
    folder = os.path.join(tmp_path, "x")
    with MDSWriter(columns=COLUMNS, out=folder) as writer:
        writer.write(sample(0))
        for bad in ({"n": 1}, {"n": "1", "text": ""}, {"n": 2**63, "text": ""}):
            with pytest.raises((KeyError, AttributeError, OverflowError)):
                writer.write(bad)
        writer.write(sample(1))
    assert golden.read_samples(folder) == [sample(0), sample(1)]


def test_finishing_twice_is_harmless_and_writing_afterwards_is_not(tmp_path: Any) -> None:
    """The index is written once; late samples are refused, not lost."""
    folder = os.path.join(tmp_path, "x")
    with MDSWriter(columns=COLUMNS, out=folder) as writer:
        writer.write(sample(0))
        writer.finish()
        before = golden.read_file(folder, "index.json")
        writer.finish()
        with pytest.raises(WriteError, match="finished"):
            writer.write(sample(1))
    assert golden.read_file(folder, "index.json") == before
    assert len(golden.read_samples(folder)) == 1


@pytest.mark.parametrize("refused", ["shard.00000.mds", "shard.00007.mds", "shard.00015.mds", "index.json"])
def test_a_failed_upload_fails_the_writer(refused: str, tmp_path: Any) -> None:
    """First, middle, last shard or the index: the writer raises with the cause, and the target has no index."""
    remote, local = os.path.join(tmp_path, "remote"), os.path.join(tmp_path, "local")
    os.makedirs(os.path.join(remote, refused))  # a folder of that name: no file can replace it
    writer = MDSWriter(columns=COLUMNS, out=(local, remote), size_limit=300, max_workers=2)
    with pytest.raises(WriteError, match=refused) as caught:
        fill(writer, 32)
    assert isinstance(caught.value.__cause__, OSError)
    assert "index.json" not in files_of(remote)
    assert not [name for name in files_of(tmp_path) if name.endswith(".tmp")]
    with pytest.raises(WriteError):
        writer.finish()
    with pytest.raises(WriteError):
        writer.write(sample(0))


class Gate(FolderUploader):
    """A folder that takes nothing until it is opened, and counts the uploads that wait."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, retry=1)
        self.opened = threading.Event()
        self.n_waiting = 0
        self._lock = threading.Lock()

    def put(self, path: str, name: str) -> None:
        """Copy the file once the gate is open."""
        with self._lock:
            self.n_waiting += 1
        assert self.opened.wait(30)
        super().put(path, name)


def test_a_slow_target_holds_the_writer_back(tmp_path: Any) -> None:
    """No more shards are in the pipeline than there are workers: memory and disk stay bounded."""
    remote, local = os.path.join(tmp_path, "remote"), os.path.join(tmp_path, "local")
    os.makedirs(local)
    gate = Gate(remote)
    plan = ShardPlan(local, {}, None, (), keep_local=False, progress_bar=False)
    pipeline = ShardPipeline(plan, gate, max_workers=2)
    builder = ShardBuilder({}, 30)
    sent: list[int] = []

    def produce() -> None:
        for n in range(12):
            shard = builder.add(bytes(30))
            if shard is not None:
                pipeline.submit(shard)
                sent.append(n)

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(0.3)
    assert producer.is_alive()
    assert len(sent) <= 2
    assert len(files_of(local)) <= 2
    gate.opened.set()
    producer.join(30)
    assert not producer.is_alive()
    pipeline.finish()
    assert len(files_of(remote)) == len(sent) + 1
    assert files_of(local) == ["index.json"]


def test_no_threads_outlive_a_writer(tmp_path: Any) -> None:
    """Neither after success nor after failure."""
    before = threading.active_count()
    write_all(50, out=os.path.join(tmp_path, "a"), size_limit=300)
    with pytest.raises(ZeroDivisionError):
        fill_and_fail(MDSWriter(columns=COLUMNS, out=os.path.join(tmp_path, "b"), size_limit=300))
    assert threading.active_count() == before


def test_a_record_that_passes_32_bit_offsets_is_refused_before_it_is_added() -> None:
    """A shard that would pass 4 GiB raises an error and stays as it was (promise: never wrong data)."""

    class Huge(bytes):
        """Bytes that claim to be many."""

        def __len__(self) -> int:
            return 2**31

    builder = ShardBuilder({}, None)
    assert builder.add(Huge()) is None
    with pytest.raises(ValueRangeError, match="size_limit"):
        builder.add(Huge())
    cutting = ShardBuilder({}, 2**32 - 1)
    assert cutting.add(b"x") is None
    assert cutting.add(Huge()) is None
    finished = cutting.add(Huge())
    assert finished is not None
    assert finished.n_samples == 2


def test_a_folder_as_remote_is_made_and_its_errors_come_through(tmp_path: Any) -> None:
    """Missing folders are made; a remote that is a file is an error when the writer is made."""
    remote = os.path.join(tmp_path, "a", "b")
    uploader = open_uploader(Folder(remote), retry=2)
    uploader.check()
    source = os.path.join(tmp_path, "file")
    with open(source, "wb") as file:
        file.write(b"x")
    uploader.put(source, "c/d")
    uploader.close()
    assert files_of(remote) == ["c/d"]
    with pytest.raises(OSError, match="file"):
        MDSWriter(columns=COLUMNS, out=(os.path.join(tmp_path, "l"), source))
    assert not os.path.exists(os.path.join(tmp_path, "l"))


def test_the_progress_bar_is_a_line_per_shard(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, and only with `progress_bar`."""
    write_all(3, out=os.path.join(tmp_path, "a"), progress_bar=True, max_workers=1)
    write_all(3, out=os.path.join(tmp_path, "b"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "shard.00000.mds: 3 samples" in shown.err


def test_arrays_and_json_are_written_and_read(tmp_path: Any) -> None:
    """A sample as in training: tokens, a label and metadata."""
    folder = os.path.join(tmp_path, "x")
    columns = {"tokens": "ndarray:uint16", "label": "uint8", "meta": "json"}
    samples: list[dict[str, Any]] = [
        {"tokens": np.arange(n + 1, dtype=np.uint16), "label": np.uint8(n), "meta": {"n": n}} for n in range(9)
    ]
    with MDSWriter(columns=columns, out=folder, compression="zstd:5", hashes=["xxh3_64"], size_limit="1kb") as writer:
        for one in samples:
            writer.write(one)
    for found, one in zip(golden.read_samples(folder), samples, strict=True):
        assert np.array_equal(found["tokens"], one["tokens"])
        assert (found["label"], found["meta"]) == (one["label"], one["meta"])


@pytest.mark.parametrize("size_limit", [2**32, 2**40, "4gb", "5gb", float(2**33), -1])
def test_a_size_limit_that_offsets_cannot_reach_is_refused(tmp_path: Any, size_limit: Any) -> None:
    """In the words and the kind of the predecessor, a ValueError, before anything is made."""
    with pytest.raises(ValueError, match=r"`size_limit` must be less than|size") as caught:
        MDSWriter(columns=COLUMNS, out=os.path.join(tmp_path, "x"), size_limit=size_limit)
    if size_limit != -1:
        assert "`size_limit` must be less than 4294967296" in str(caught.value)
    assert not os.listdir(tmp_path)
