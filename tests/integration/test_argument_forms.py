"""Arguments in the forms in which people write them: taken where they are unambiguous, else refused by name."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset, WaitRules, World
from streaming.errors import OptionError, StreamingError, WorldError
from streaming.units import parse_bytes, parse_count
from support.numbered import checked_id, write_numbered

N = 60


class Folder(os.PathLike[str]):
    """A path of the user's own kind."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("forms")
    write_numbered(str(root / "train"), N)
    return str(root)


# --- numbers

EIGHT = [8, np.int64(8), np.uint8(8), np.array(8), torch.tensor(8), 8.0, np.float32(8), "8", " 8 "]
NO_NUMBER = [
    True,
    np.True_,
    torch.tensor(True),
    8.5,
    math.nan,
    math.inf,
    "eight",
    "",
    "8k",
    [8],
    {},
    b"8",
    8j,
    object(),
]
WHOLE = {  # whether 0 and below are refused
    "batch_size": True,
    "predownload": False,
    "num_canonical_nodes": False,
    "shuffle_seed": False,
    "shuffle_block_size": False,
    "sampling_granularity": True,
    "replication": True,
    "download_retry": False,
}


def _dataset(root: str, **options: Any) -> StreamingDataset:
    return StreamingDataset(**{"local": root, "split": "train", "batch_size": 8, "world": World(0, 8), **options})


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_is_taken_in_any_form(root: str, name: str) -> None:
    """Python's, numpy's and PyTorch's; floats without a fraction; digits. None is the default."""
    expected = _dataset(root, **{name: 8})
    for eight in EIGHT:
        dataset = _dataset(root, **{name: eight})
        if name == "download_retry":
            assert dataset.streams[0].download_retry == 8
        else:
            found = getattr(dataset, name)
            assert (found, type(found)) == (getattr(expected, name), int)
    _dataset(root, **{name: None})


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_no_whole_number_is_refused(root: str, name: str) -> None:
    """By an error that names the argument and the value."""
    for value in [*NO_NUMBER, -1, *([0] if WHOLE[name] else [])]:
        with pytest.raises(OptionError, match=name) as found:
            _dataset(root, **{name: value})
        assert repr(value) in str(found.value) or str(value) in str(found.value)


@pytest.mark.parametrize("name", ["shuffle", "keep_zip", "allow_unsafe_types"])
def test_flags_are_true_or_false(root: str, name: str) -> None:
    """Also as numpy's and PyTorch's, and as 1 and 0; never as text, since "False" would count as true."""
    truths: list[Any] = [True, np.True_, np.bool_(1), torch.tensor(True), 1, np.int64(1)]
    for truth in truths:
        _dataset(root, **{name: truth})
    for value in ("False", "true", "", 2, -1, [], math.nan, object()):
        with pytest.raises(OptionError, match=rf"{name} must be True or False"):
            _dataset(root, **{name: value})
    assert _dataset(root, shuffle=np.True_).shuffle is True


def test_a_timeout_is_a_number_of_seconds(root: str) -> None:
    """Above 0 and finite, in any form."""
    forms: list[Any] = [1, 1.5, np.float32(2), torch.tensor(3.0), "60", Decimal("2.5")]
    for form in forms:
        assert _dataset(root, download_timeout=form).streams[0].download_timeout == float(form)
    for value in (0, -1, math.nan, math.inf, "soon", True, [1]):
        for make in (_dataset, lambda root, **options: Stream(local=root, **options)):
            with pytest.raises(OptionError, match="download_timeout"):
                make(root, download_timeout=value)


@pytest.mark.parametrize(
    ("value", "n"),
    [(40, 40), (4e1, 40), ("40", 40), (np.int32(40), 40), (torch.tensor(40), 40), ("0.04k", 40), ("4e1", 40), ("", 60),
     (0, 60), (None, 60), (" .04 K ", 40), ("4_0", 40)],
)  # fmt: skip
@pytest.mark.parametrize("name", ["epoch_size", "samples_per_epoch"])
def test_the_size_of_an_epoch_is_taken_in_any_form(root: str, name: str, value: Any, n: int) -> None:
    """As a number or as text with a unit."""
    assert _dataset(root, **{name: value}).epoch_size == n


@pytest.mark.parametrize("value", [-1, "-1", 0.5, math.nan, math.inf, "many", "1.5", True, [40], "1.5kb", "e5", "."])
@pytest.mark.parametrize("name", ["epoch_size", "samples_per_epoch"])
def test_what_is_no_size_of_an_epoch_is_refused(root: str, name: str, value: Any) -> None:
    """By an error that names the argument and the value."""
    with pytest.raises(OptionError, match=name) as found:
        _dataset(root, **{name: value})
    assert str(value) in str(found.value)


SIZES = {
    "64 MB": 64 << 20, "10 GB": 10 << 30, "100 gb": 100 << 30, " 75 m ": None, ".5kb": 512, " 1.5 KiB": 1536, "7": 7,
    "64MiB": 64 << 20, "1e6": 10**6, "1_000": 1000, "1.5e3": 1500, "5.": None, "b": None, ".": None, "1 2 mb": None,
    "1,000": None, "-5mb": None, "5 mib b": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
def test_sizes_may_have_spaces_and_units_of_either_kind(text: str) -> None:
    """In steps of 1024; what is ambiguous is refused."""
    expected = SIZES[text]
    if expected is not None:
        assert parse_bytes(text) == expected
    else:
        with pytest.raises(OptionError, match="Unsupported value/suffix"):
            parse_bytes(text)


def test_counts_may_have_spaces() -> None:
    """In steps of 1000."""
    assert [parse_count(text) for text in (" 75 m ", ".5 K", "2 b", "1e3")] == [75_000_000, 500, 2 * 10**9, 1000]


@pytest.mark.parametrize("value", ["10 GB", "1e9", 10**9, 1e9, np.int64(10**9), np.float64(1e9), torch.tensor(10**9)])
def test_a_limit_of_the_cache_is_taken_in_any_form(root: str, tmp_path: Path, value: Any) -> None:
    """And so is the size of a shard."""
    _dataset(root, remote=root, local=tmp_path / "cache", cache_limit=value)
    size_limit = min(value, 10**9) if not isinstance(value, str) else "1e9"
    with MDSWriter(out=tmp_path / "out", columns={"i": "int"}, size_limit=size_limit) as out:
        out.write({"i": 1})


@pytest.mark.parametrize("value", ["ten", -5, math.nan, True, Path("10gb"), [1], "-1gb"])
def test_what_is_no_limit_of_the_cache_is_refused(root: str, tmp_path: Path, value: Any) -> None:
    """By an error that names the argument and the value."""
    with pytest.raises(OptionError, match="cache_limit") as found:
        _dataset(root, remote=root, local=tmp_path / "cache", cache_limit=value)
    assert str(value) in str(found.value)


# --- places

FORMS: list[Callable[[str], Any]] = [str, Path, PurePosixPath, Folder, np.str_]


@pytest.mark.parametrize("form", FORMS)
def test_places_are_texts_or_paths(root: str, tmp_path: Path, form: Callable[[str], Any]) -> None:
    """In every constructor."""
    place, split = form(root), form("train")
    assert len(StreamingDataset(local=place, split=split)) == N
    assert len(StreamingDataset(remote=place, local=form(str(tmp_path / "cache")), split=split)) == N
    assert len(StreamingDataset(streams=[Stream(remote=place, split=split)])) == N
    assert len(StreamingDataset(streams=[Stream(local=place)], split=split)) == N
    assert len(StreamingDataset(local=place, split=split, stream_config={"repeat": 2})) == 2 * N
    assert len(LocalDataset(place, split)) == len(LocalDataset(local=form(f"{root}/train"))) == N
    files = StreamingDataset(local=place, split=split).side_files(place, form(str(tmp_path / "files")))
    with files.open("train/index.json") as file:
        assert file.read(1) in ("{", b"{")


@pytest.mark.parametrize("value", [5, b"bytes", ["a"], True, object(), "a\0b"])
@pytest.mark.parametrize("name", ["remote", "local", "split"])
def test_what_is_no_place_is_refused(root: str, name: str, value: Any) -> None:
    """By an error that names the argument."""
    for make in (Stream, StreamingDataset):
        with pytest.raises(OptionError, match=name):
            make(**{"local": root, name: value})
    if name != "remote":
        with pytest.raises(OptionError, match=name):
            LocalDataset(**{"local": root, name: value})


def test_a_url_that_a_path_has_swallowed_is_refused(root: str) -> None:
    """Path("s3://bucket") is s3:/bucket; and a URL is no folder of this machine."""
    with pytest.raises(OptionError, match="a Path cannot hold a URL"):
        Stream(remote=Path("s3://bucket/data"))
    for local in ("s3://bucket/data", Path("gs://bucket/data")):
        with pytest.raises(OptionError, match="local is a folder of this machine"):
            StreamingDataset(local=local)
        with pytest.raises(OptionError, match="local is a folder of this machine"):
            LocalDataset(local)


# --- streams, worlds, mappings


def _streams(root: str) -> Iterator[Stream]:
    for _ in range(2):
        yield Stream(local=root, split="train")


def test_streams_are_any_ordered_collection_or_one(root: str) -> None:
    """A generator, an iterator, a tuple, the values of a dict, an array of objects, or one stream."""
    one, two = _streams(root)
    array = np.empty(2, object)
    array[:] = [one, two]
    for streams in ([one, two], (one, two), _streams(root), iter([one, two]), {"a": one, "b": two}.values(), array):
        assert len(StreamingDataset(streams=streams)) == 2 * N
    assert len(StreamingDataset(streams=one)) == N


def test_what_is_no_ordered_collection_of_streams_is_refused(root: str) -> None:
    """A set has another order in each process, and the keys of a dict would mean nothing."""
    stream = Stream(local=root, split="train")
    given: list[tuple[Any, str]] = [
        ({stream}, "set"), ({"a": stream}, "values"), (root, "streams"), (5, "streams"), ([], "empty"),
        (iter([]), "empty"),
        ([root], r"streams\[0\] is a str"), ([stream, None], r"streams\[1\]"),
    ]  # fmt: skip
    for streams, text in given:
        with pytest.raises(OptionError, match=text):
            StreamingDataset(streams=streams)


def test_a_stream_takes_numbers_in_any_form(root: str) -> None:
    """Weights and attempts."""
    for options, n in (
        ({"choose": np.int64(30)}, 30), ({"choose": "30"}, 30), ({"choose": 30.0}, 30),
        ({"choose": torch.tensor(30)}, 30),
        ({"repeat": np.float32(0.5)}, 30), ({"repeat": 2}, 120), ({"proportion": np.int8(1)}, 60),
    ):  # fmt: skip
        values: dict[str, Any] = options
        assert len(StreamingDataset(streams=[Stream(local=root, split="train", **values)])) == n
    for name in ("choose", "repeat", "proportion"):
        for value in (-1, math.nan, math.inf, True, "many", [1]):
            wrong: dict[str, Any] = {name: value}
            with pytest.raises(OptionError, match=name):
                Stream(local=root, **wrong)


@pytest.mark.parametrize("value", [5, "x", [("a", 1)], {1: 2}])
@pytest.mark.parametrize("name", ["storage_options", "stream_config"])
def test_what_is_no_mapping_is_refused(root: str, name: str, value: Any) -> None:
    """By an error that names the argument, without its value, which may be secret."""
    with pytest.raises(OptionError, match=name):
        StreamingDataset(**{"local": root, name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("shuffle_algo", ["py9", "", 5, object()]),
        ("batching_method", ["some", 5]),
        ("sampling_method", ["some", 5]),
        ("remainder", ["some", 5]),
        ("partition_algo", ["some", 5]),
        ("validate_hash", [5, True, 1.0]),
        ("world", [8, "0", (0, 8), object()]),
    ],
)
def test_what_is_no_choice_is_refused(root: str, name: str, values: list[Any]) -> None:
    """By an error that names the argument and the value."""
    for value in values:
        with pytest.raises(OptionError, match=name):
            StreamingDataset(**{"local": root, "split": "train", name: value})


def test_a_world_takes_numbers_in_any_form() -> None:
    """And refuses all else."""
    assert World(np.int64(3), "8", torch.tensor(4)) == World(3, 8, 4)  # type: ignore[arg-type]
    for values in ((True, 2), (0, 2.5), ("one", 2), (0, None)):
        with pytest.raises(WorldError):
            World(*values)


def test_methods_take_numbers_in_any_form(root: str) -> None:
    """Sample numbers, epochs and counts."""
    dataset = _dataset(root, world=None, shuffle=True)
    threes: list[Any] = [3, np.int64(3), np.array(3), torch.tensor(3)]
    for three in threes:
        assert checked_id(dataset[three]) == checked_id(dataset.get_item(three)) == 3
        dataset.set_epoch(three)
        assert dataset.next_epoch == 3
        assert dataset.order_of(three).epoch == 3
        dataset.state_dict(three, True)
    both: Any = torch.tensor([1, -1])
    assert [checked_id(sample) for sample in dataset[both]] == [1, N - 1]
    assert [checked_id(sample) for sample in dataset[range(2)]] == [0, 1]
    refused: list[Any] = [-1, 1.5, "x", None, math.nan]
    for value in refused:
        for ask in (dataset.set_epoch, dataset.order_of, lambda n: dataset.state_dict(n, True)):
            with pytest.raises(OptionError):
                ask(value)


def test_a_loader_takes_its_own_arguments_checked(root: str) -> None:
    """`log_stats` is a flag, `wait_rules` a WaitRules or None."""
    dataset = _dataset(root, world=None)
    StreamingDataLoader(dataset, batch_size=8, log_stats=np.True_, wait_rules=WaitRules())  # type: ignore[arg-type]
    for options in ({"log_stats": "no"}, {"wait_rules": True}, {"wait_rules": {"share": 0.5}}):
        values: dict[str, Any] = options
        with pytest.raises(OptionError, match=next(iter(values))):
            StreamingDataLoader(dataset, batch_size=8, **values)


def test_predownload_below_the_batch_size_is_warned_of_once(root: str) -> None:
    """As by the predecessor; 0 is allowed, and reads all the same."""
    for predownload in (0, 7):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            dataset = _dataset(root, world=None, predownload=predownload)
            assert sorted(map(checked_id, dataset)) == list(range(N))
        assert [warning.category for warning in found] == [UserWarning]
        assert f"predownload={predownload} is below batch_size=8" in str(found[0].message)


def test_no_error_is_foreign(root: str) -> None:
    """Whatever is given, what comes back is an error of ours, which names the argument."""
    odd = [object(), [], {}, (), b"", math.nan, -(10**30), 10**30, 1j, lambda: 1, "é", "\ud800", Ellipsis, type]
    not_named = ("remote", "stream_name")
    for name in StreamingDataset.__init__.__kwdefaults__ or {}:
        for value in odd:
            options: dict[str, Any] = {"local": root, "split": "train", name: value}
            try:
                StreamingDataset(**options)
            except StreamingError as refused:
                error: StreamingError | None = refused
            else:
                error = None
            names = [name, "epoch_size"] if name == "samples_per_epoch" else [name]
            assert error is None or name in not_named or any(shown in str(error) for shown in names), (name, value)
