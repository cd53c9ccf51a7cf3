"""Bad input: a clear error that names the thing, early where that is possible; never a hang or a short epoch."""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import (
    DeadlineError,
    EmptyStreamError,
    IndexFormatError,
    IndexMissingError,
    NotYetError,
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    ShardDamagedError,
    StorageError,
    StoreUnreachableError,
    StreamingError,
    TransferDamagedError,
    UnsafeTypeError,
)
from streaming.testing.s3 import S3Server
from support.numbered import checked_id, checked_ids, write_numbered


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    write_numbered(str(folder), 200)
    return folder


def _edit_index(folder: Path, edit: Any) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Fail the whole test process loudly instead of hanging it."""
    import faulthandler

    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


# --- at construction


def test_a_missing_index_names_its_path(tmp_path: Path) -> None:
    """Local: RuntimeError as the predecessor; remote: the missing object."""
    with pytest.raises(RuntimeError, match=r"No `remote` provided, but local file .*nowhere/index\.json") as local:
        StreamingDataset(local=str(tmp_path / "nowhere"))
    assert isinstance(local.value, IndexMissingError)
    with pytest.raises(FileNotFoundError, match=r"nowhere/index\.json"):
        StreamingDataset(remote=str(tmp_path / "nowhere"), local=str(tmp_path / "cache"))
    with pytest.raises(IndexMissingError, match="nowhere"):
        LocalDataset(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda index: index.update(version=3), "version"),
        (lambda index: index.pop("shards"), "shards"),
        (lambda index: index["shards"][1].update(samples=-1), "samples"),
        (lambda index: index["shards"][1]["raw_data"].update(basename="../shard.00001.mds"), r"\.\."),
        (lambda index: index["shards"][1]["raw_data"].update(basename="/etc/passwd"), "passwd"),
        (lambda index: index["shards"][1]["raw_data"].update(basename="shard.00000.mds"), "shard.00000.mds"),
        (lambda index: index["shards"][1].update(format="parrot"), "parrot"),
        (lambda index: index["shards"][1]["column_encodings"].__setitem__(0, "parrot"), "parrot"),
        (lambda index: index["shards"][1]["raw_data"].update(bytes="many"), "bytes"),
    ],
)
def test_a_bad_index_is_refused_at_construction(source: Path, edit: Any, text: str) -> None:
    """Another version, a missing key, hostile or doubled names, unknown formats: the error names what it is."""
    _edit_index(source, edit)
    with pytest.raises(ValueError, match=text) as found:
        StreamingDataset(local=str(source))
    assert isinstance(found.value, StreamingError)
    assert str(source) in str(found.value)


def test_text_that_is_no_json_is_refused(source: Path) -> None:
    """A half-written or foreign file."""
    (source / "index.json").write_text('{"shards": [')
    with pytest.raises(IndexFormatError, match=r"index\.json"):
        StreamingDataset(local=str(source))


def test_a_cut_or_missing_shard_of_a_source_is_found_at_construction(source: Path) -> None:
    """Expected and found sizes are named; so is a file that is not there."""
    shard = source / "shard.00002.mds"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(ShardDamagedError, match=rf"shard.00002.mds has {len(content) - 1:,} bytes .* {len(content):,}"):
        StreamingDataset(local=str(source))
    shard.unlink()
    with pytest.raises(ObjectMissingError, match=r"shard.00002.mds"):
        StreamingDataset(local=str(source))


def test_a_shard_cut_after_construction_is_an_error_not_a_signal(source: Path) -> None:
    """A source is never mapped: cutting its file under a reader raises, and names shard and sample."""
    dataset = StreamingDataset(local=str(source))
    last = int(dataset.samples_per_shard[0]) - 1
    checked_id(dataset[0])
    os.truncate(source / "shard.00000.mds", 2000)
    with pytest.raises(ShardDamagedError, match=rf"shard.00000.mds.*sample {last}"):
        dataset[last]


def test_pickle_is_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    """The marker that the pickle would make is absent, in a source, a cache, and the local dataset."""
    marker = tmp_path / "marker"

    class Harmful:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(marker),)

    out = tmp_path / "source"
    with MDSWriter(out=str(out), columns={"x": "pkl"}) as writer:
        writer.write({"x": pickle.dumps(Harmful())})
    places: list[dict[str, Any]] = [{"local": str(out)}, {"remote": str(out), "local": str(tmp_path / "cache")}]
    for options in places:
        with pytest.raises(UnsafeTypeError, match="unsafe type"):
            StreamingDataset(**options)
    with pytest.raises(UnsafeTypeError, match="unsafe type"):
        LocalDataset(str(out))
    assert not marker.exists()
    StreamingDataset(local=str(out), allow_unsafe_types=True)[0]
    assert marker.exists()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"shuffle_algo": "py3e"}, OptionError, "shuffle_algo"),
        ({"remainder": "parrot"}, OptionError, "remainder"),
        ({"batching_method": "parrot"}, OptionError, "batching_method"),
        ({"batching_method": "per_stream"}, OptionError, "batch_size"),
        ({"sampling_method": "parrot"}, OptionError, "Invalid sampling method|sampling_method"),
        ({"sampling_granularity": 0}, OptionError, "sampling_granularity"),
        ({"shuffle_seed": -1}, OptionError, "seed"),
        ({"num_canonical_nodes": -1}, OptionError, "num_canonical_nodes"),
        ({"shuffle_block_size": -1}, OptionError, "shuffle_block_size"),
        ({"partition_algo": "parrot"}, OptionError, "partition_algo"),
        ({"batch_size": 0}, OptionError, "batch_size"),
        ({"batch_size": 2.5}, OptionError, "batch_size"),
        ({"predownload": -1}, OptionError, "predownload"),
        ({"epoch_size": "12q"}, OptionError, "Unsupported value"),
        ({"epoch_size": 100, "samples_per_epoch": 200}, OptionError, "samples_per_epoch"),
        ({"epoch_size": -5}, OptionError, "epoch_size"),
        ({"cache_limit": "12q"}, OptionError, "12q"),
        ({"cache_limit": -1}, OptionError, "cache_limit"),
        ({"replication": 0}, OptionError, "replication"),
        ({"replication": 2}, OptionError, "replication"),
        ({"stream_name": "other"}, NotYetError, "stream_name"),
        ({"stream_config": {"repeat": 2, "choose": 3}}, OptionError, "at most one|only one"),
        ({"stream_config": {"choose": 0}}, OptionError, "weight"),
        ({"validate_hash": "sha1"}, OptionError, "sha1"),
        ({"validate_hash": "parrot"}, OptionError, "parrot"),
        ({"download_retry": -1}, OptionError, "download_retry"),
        ({"download_timeout": 0}, OptionError, "download_timeout"),
        ({"split": "../other"}, OptionError, "split"),
        ({"streams": [1], "local": None}, OptionError, r"streams\[0\]"),
        ({"streams": [], "local": None}, OptionError, "empty"),
        ({"local": None}, OptionError, "streams"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_and_later_ones_are_named(
    source: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Every setting that cannot be honoured raises when the dataset is made; none is ignored."""
    with pytest.raises(error, match=text):
        StreamingDataset(**{"local": str(source), **options})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, OptionError, "remote"),
        ({"remote": "tape://x/y"}, OptionError, "Unsupported remote path"),
        ({"remote": "s3://x/y", "storage_options": {"colour": "red"}}, OptionError, "colour"),
        ({"local": "x", "proportion": 1, "repeat": 2}, OptionError, "at most one"),
        ({"local": "x", "choose": -1}, OptionError, "choose"),
        ({"local": "x", "proportion": float("nan")}, OptionError, "proportion"),
        ({"local": "x", "validate_hash": True}, OptionError, "validate_hash"),
    ],
    ids=str,
)
def test_wrong_streams_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    """The same for a stream, when it is made."""
    with pytest.raises(error, match=text):
        Stream(**options)


def test_settings_at_their_default_are_accepted(source: Path) -> None:
    """What has no effect yet may be passed at its default; `partition_algo` never has one."""
    dataset = StreamingDataset(
        local=str(source),
        epoch_size=None,
        cache_limit=None,
        replication=1,
        stream_name="stream",
        stream_config={},
        sampling_granularity=1,
        partition_algo="orig",
        validate_hash="xxh64",
    )
    assert checked_id(dataset[3]) == 3


def test_a_dataset_without_samples_is_refused(tmp_path: Path) -> None:
    """RuntimeError for the streaming dataset, IndexError for the local one, as the predecessor raises."""
    MDSWriter(out=str(tmp_path / "empty"), columns={"x": "int"}).finish()
    with pytest.raises(RuntimeError, match="no samples") as found:
        StreamingDataset(local=str(tmp_path / "empty"))
    assert isinstance(found.value, EmptyStreamError)
    with pytest.raises(IndexError, match="no samples"):
        LocalDataset(str(tmp_path / "empty"))


def test_a_loader_that_gives_up_the_order_is_refused_and_a_second_batch_size_is_warned_of(source: Path) -> None:
    """Out-of-order loading cannot resume; two batch sizes make batches depend on the number of workers."""
    dataset = StreamingDataset(local=str(source), batch_size=4)
    with pytest.warns(UserWarning, match="batch_size=8"):
        StreamingDataLoader(dataset, batch_size=8)
    with pytest.raises(OptionError, match="in_order"):
        StreamingDataLoader(dataset, batch_size=4, in_order=False)


# --- from the store


def test_what_a_store_answers_is_told_apart(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """403, 404 and a missing bucket are three errors, which name the object and the endpoint."""
    for name, value in s3_server.variables().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ObjectMissingError, match=r"s3://.*nothing-here/index.json.*404"):
        StreamingDataset(remote=s3_server.url("nothing-here"), local=str(tmp_path / "a"))
    with pytest.raises(ObjectMissingError, match="no such bucket"):
        StreamingDataset(remote="s3://no-such-bucket/x", local=str(tmp_path / "b"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with _deadline(100), pytest.raises(ObjectForbiddenError, match="403"):
        StreamingDataset(remote=s3_server.url("nothing-here"), local=str(tmp_path / "c"))
    with _deadline(100), pytest.raises(ObjectForbiddenError, match="403"):
        MDSWriter(out=s3_server.url("out"), columns={"x": "int"})


def test_a_store_that_does_not_answer_is_an_error_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that refuses, and one that accepts and says nothing."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("S3_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with _deadline(100), pytest.raises(StoreUnreachableError, match=str(port)):
        StreamingDataset(remote="s3://bkt/x", local=str(tmp_path / "a"), download_timeout=3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        held: list[socket.socket] = []
        thread = threading.Thread(target=_accept_for_ever, args=(silent, held), daemon=True)
        thread.start()
        port = silent.getsockname()[1]
        monkeypatch.setenv("S3_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        with _deadline(100), pytest.raises((StorageError, DeadlineError), match=str(port)):
            StreamingDataset(remote="s3://bkt/x", local=str(tmp_path / "b"), download_timeout=3, download_retry=1)
        silent.close()
    for peer in held:
        peer.close()


def _accept_for_ever(silent: socket.socket, held: list[socket.socket]) -> None:
    try:
        while True:
            held.append(silent.accept()[0])
    except OSError:
        return


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_a_bad_remote_shard_ends_the_epoch_with_its_name(
    source: Path, tmp_path: Path, damage: str, n_workers: int
) -> None:
    """Cut short, wrong hash or gone: the error reaches the consumer, through workers too, and names the file."""
    shard = source / "shard.00003.mds"
    content = bytearray(shard.read_bytes())
    if damage == "cut":
        shard.write_bytes(content[:-10])
    elif damage == "flipped":
        content[-5] ^= 1
        shard.write_bytes(content)
    else:
        shard.unlink()
    dataset = StreamingDataset(
        remote=str(source), local=str(tmp_path / "cache"), shuffle=True, download_retry=2, download_timeout=5
    )
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=n_workers, collate_fn=checked_ids)
    with (
        _deadline(100),
        pytest.raises((TransferDamagedError, ObjectMissingError), match=r"shard.00003.mds"),
    ):
        list(loader)
    assert not (tmp_path / "cache" / "shard.00003.mds").exists()


def test_a_wrong_file_in_the_cache_is_fetched_again(source: Path, tmp_path: Path) -> None:
    """Cut by somebody else, or of another size: a miss, healed by one more fetch."""
    cache = tmp_path / "cache"
    list(StreamingDataset(remote=str(source), local=str(cache)))
    (cache / "shard.00001.mds").write_bytes(b"short")
    (cache / "shard.00002.mds").unlink()
    assert list(map(checked_id, StreamingDataset(remote=str(source), local=str(cache)))) == list(range(200))
