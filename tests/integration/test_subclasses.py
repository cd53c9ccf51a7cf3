"""Subclasses of users: any name is theirs, and hooks that would never be called are refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import OptionError
from support.numbered import checked_id, checked_ids, write_numbered

N = 60

NAMES = re.findall(
    r"\w+",
    """
    _read _open _loader _state _store _world _room _ring _schedule _topology _starter watch begin_epoch
    rank_samples state_of workers_join _cache _index _lock _data _dataset _iterator _epoch _seed _rng _rank
    _length _len _size _keys _transform _tokenizer _columns _config _client _pool _files _lookup _settings
    _streams _catalog _side _internals _stream_defaults _loader_side _together _advise _close _closed _get
    _samples _number _shards _stats _monitor _world_size transform target_transform tokenizer max_seq_len
    max_seq_length size shape classes labels mean std columns config cache index indices catalog num_samples
    num_shards num_streams data samples items keys seed epoch rank world_size world rng length name path root
    device dtype mode state step steps stats settings close_fn loader store ranks schedule plan spec fixed
    defaults source location locations weights streams_info draws_per_stream samples_per_shard
    samples_per_stream shards_per_stream stream_per_shard logger log debug
    """,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("subclasses") / "source"
    write_numbered(str(folder), N)
    return str(folder)


def _method(self: Any, *_: Any, **__: Any) -> str:
    raise AssertionError("a method of the user's was called by the library")


class Before(StreamingDataset):
    """Sets an attribute of its own before the dataset is made."""

    def __init__(self, name: str, **options: Any) -> None:
        setattr(self, name, ("mine", name))
        super().__init__(**options)


class After(StreamingDataset):
    """Sets an attribute of its own after the dataset was made."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        setattr(self, name, ("mine", name))


def _works(dataset: StreamingDataset) -> None:
    """Iterate, read by number, ask everything, save and load."""
    assert len(dataset) == N
    loader = StreamingDataLoader(dataset, batch_size=4, collate_fn=checked_ids)
    found = sorted(number for batch in loader for number in batch)
    assert found == list(range(N))
    assert [checked_id(sample) for sample in dataset[-3:]] == [N - 3, N - 2, N - 1]
    state = loader.state_dict()
    assert state is not None
    dataset.load_state_dict(state)
    dataset.state_dict(0, from_beginning=False)
    dataset.set_epoch(0)
    dataset.explain()
    StreamingDataset.stats(dataset)
    repr(dataset)
    iter(dataset)


@pytest.mark.parametrize("kind", ["method", "class attribute", "before", "after"])
@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_the_users(source: str, name: str, kind: str) -> None:
    """As a method, a class attribute, or an attribute set before or after the dataset is made."""
    options: dict[str, Any] = {"local": source, "shuffle": True, "batch_size": 4}
    if kind in ("method", "class attribute"):
        own = _method if kind == "method" else ("mine", name)
        dataset: StreamingDataset = type("Own", (StreamingDataset,), {name: own})(**options)
    else:
        dataset = (Before if kind == "before" else After)(name, **options)
        assert getattr(dataset, name) == ("mine", name)
        restored = pickle.loads(pickle.dumps(dataset))
        assert getattr(restored, name) == ("mine", name)
        assert len(restored) == N
    _works(dataset)


@pytest.mark.parametrize("name", [*NAMES, "get"])
def test_any_name_of_a_local_dataset_is_the_users(source: str, name: str) -> None:
    """As for a StreamingDataset."""
    for own in (_method, ("mine", name)):
        dataset: LocalDataset = type("Own", (LocalDataset,), {name: own})(source)
        assert len(dataset) == N
        assert checked_id(dataset[3]) == 3
    dataset = LocalDataset(source)
    setattr(dataset, name, ("mine", name))
    assert [checked_id(sample) for sample in dataset[:2]] == [0, 1]


def test_the_insides_have_one_name() -> None:
    """No other private name is in a dataset or its classes."""
    for kind in (StreamingDataset, LocalDataset):
        own = {name for base in kind.__mro__ if base.__module__.startswith("streaming") for name in vars(base)}
        private = {name for name in own if name.startswith("_") and not name.startswith("__")}
        assert private <= {"_streaming_internals", "_abc_impl"}, private


@pytest.mark.parametrize(
    "hook",
    [
        "get_shards",
        "prepare_shard",
        "_prepare_shard_part",
        "_download_file",
        "_decompress_shard_part",
        "get_index_size",
        "set_up_local",
        "apply_default",
        "apply_weights",
        "validate_weights",
    ],
)
def test_a_hook_that_would_never_be_called_is_refused(source: str, hook: str) -> None:
    """At construction, with the name of what takes its place; also where a base class defines it."""
    kind = type("Own", (Stream,), {hook: _method})
    for subclass in (kind, type("Further", (kind,), {})):
        with pytest.raises(OptionError, match=rf"{subclass.__name__}\.{hook}\(\) would never be called.*[=(]"):
            subclass(local=source)


def test_a_subclass_of_a_stream_may_have_names_of_its_own(source: str) -> None:
    """Such as defaults of its own, and further attributes."""

    class Mine(Stream):
        weight = "mine"

        def __init__(self, name: str) -> None:
            super().__init__(local=source)
            self.location = self.resolve = name

        def describe(self) -> str:
            return "mine"

    stream = Mine("a")
    dataset = StreamingDataset(streams=[stream], batch_size=4)
    assert len(list(dataset)) == N
    assert isinstance(dataset.streams[0], Stream)


# --- what came out of a stream


def test_a_dataset_says_where_its_streams_lie(source: str, tmp_path: Path) -> None:
    """The cache, the private cache, or the source that is read in place; the user's object stays as it is."""
    cached = Stream(remote=source, local=str(tmp_path / "cache"), download_retry=5)
    private = Stream(remote=source)
    before = [dict(vars(stream)) for stream in (cached, private)]
    dataset = StreamingDataset(streams=[cached, private], batch_size=4, download_retry=3)
    assert [dict(vars(stream)) for stream in (cached, private)] == before
    first, second = dataset.streams
    assert (first.local, first.folder, first.download_retry) == (str(tmp_path / "cache"),) * 2 + (5,)
    assert (second.local, second.folder, second.download_retry) == (source, source, 3)
    assert (Path(first.folder) / "index.json").exists()
    dataset.streams = [cached, private]
    dataset.streams = dataset.streams
    with pytest.raises(OptionError, match="local of a dataset's stream is fixed"):
        first.local = "elsewhere"
    again = StreamingDataset(streams=dataset.streams, batch_size=4)
    assert [stream.folder for stream in again.streams] == [first.folder, second.folder]


def test_what_is_assigned_to_a_stream_before_its_dataset_takes_effect(source: str, tmp_path: Path) -> None:
    """Also `remote`, which is looked at when it is used."""
    stream = Stream(remote=str(tmp_path / "nowhere"), local=str(tmp_path / "cache"))
    stream.remote = source
    stream.repeat = 2
    dataset = StreamingDataset(streams=stream, batch_size=4)
    assert dataset.draws_per_stream.tolist() == [2 * N]
    stream.choose = 3
    with pytest.raises(OptionError, match="at most one weight"):
        StreamingDataset(streams=stream, batch_size=4)
