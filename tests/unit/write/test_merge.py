"""`merge_index`: the predecessor's bytes, every form of the arguments, and every refusal."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, StreamingDataset
from streaming.errors import (
    IndexFormatError,
    IndexMissingError,
    NotYetError,
    ObjectMissingError,
    OptionError,
    PartMissingError,
    ShardDamagedError,
)
from streaming.write.merge import merge_index
from support import golden
from support.merging import INDEX, contents_of, ids_in, names_of, shards_of, write_parts

MERGED = {
    "merged-root": "data",
    "merged-mixed": "data",
    "processes-merged": "data",
    "split-merged": "data/train",
}


def golden_copy(tmp_path: Path, name: str, folder: str = "data") -> Path:
    """A copy of a golden data set that a test may change."""
    return Path(shutil.copytree(os.path.join(golden.ROOT, name, folder), tmp_path / name))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three parts, 15 samples each."""
    write_parts(tmp_path / "root", {"part1": 15, "part2": 15, "part10": 15})
    return tmp_path / "root"


# --- results


@pytest.mark.parametrize(("name", "folder"), MERGED.items())
@pytest.mark.parametrize("is_merged_already", [False, True])
def test_parts_of_the_predecessor_merge_to_its_own_bytes(
    tmp_path: Path, name: str, folder: str, is_merged_already: bool
) -> None:
    """Parts of one depth whose order is the same either way give the predecessor's index, byte for byte."""
    root = golden_copy(tmp_path, name, folder)
    merged = (root / INDEX).read_bytes()
    if not is_merged_already:
        (root / INDEX).unlink()
    merge_index(str(root))
    assert (root / INDEX).read_bytes() == merged


def test_a_list_of_the_predecessors_parts_merges_to_its_own_bytes(tmp_path: Path) -> None:
    """The order of the list is kept; an index that stands in it twice is taken once."""
    root = golden_copy(tmp_path, "merged-list")
    merged = (root / INDEX).read_bytes()
    (root / INDEX).unlink()
    merge_index([str(root / part / INDEX) for part in "bacab"] + [f"{root}/a/{INDEX}/"], str(root))
    assert (root / INDEX).read_bytes() == merged


def test_merging_splits_into_one_reads_to_all_their_samples(tmp_path: Path) -> None:
    """Parts two folders deep keep both folders in their names, and a merged split is not taken twice."""
    root = golden_copy(tmp_path, "split-merged")
    merge_index(root)
    names = names_of(root / INDEX)
    assert names[0] == "train/g0/shard.00000.mds"
    assert names[-1] == "val/shard.00000.mds"
    views = {(view["path"], view["split"]): view["samples"] for view in golden.expected("split-merged")["views"]}
    golden.check_samples(LocalDataset(str(root))[:], views["data", "train"] + views["data", "val"])


def test_three_parts_with_inner_split_folders_and_equal_file_names(tmp_path: Path) -> None:
    """The merged count is the sum, all records are read, streamed and in place, and no path is listed twice."""
    ids = write_parts(tmp_path / "root", {f"part{part}/train": 20 for part in (0, 1, 2)}, compression="zstd")
    merge_index(str(tmp_path / "root"))
    names = names_of(tmp_path / "root" / INDEX)
    assert len(names) == len(set(names)) == sum(len(list(tmp_path.rglob(f"root/part{i}/**/*.zstd"))) for i in (0, 1, 2))
    assert ids_in(tmp_path / "root") == ids
    dataset = StreamingDataset(remote=str(tmp_path / "root"), local=str(tmp_path / "cache"), batch_size=4)
    assert [sample["id"] for sample in dataset] == ids
    dataset.close()


def test_new_parts_are_found_and_deleted_parts_are_forgotten(root: Path) -> None:
    """A merge lists the parts that exist, whatever the earlier merge listed."""
    merge_index(root)
    shutil.rmtree(root / "part1")
    shutil.copytree(root / "part2", root / "part3/inner")
    merge_index(root)
    assert list(dict.fromkeys(name.rpartition("/")[0] for name in names_of(root / INDEX))) == [
        "part2",
        "part3/inner",
        "part10",
    ]


def test_parts_may_have_different_columns_and_formats(tmp_path: Path) -> None:
    """An index allows that, too; whether a dataset can decode all of them is not a question of merging."""
    root = golden_copy(tmp_path, "merged-mixed")
    shutil.copytree(os.path.join(golden.ROOT, "mds-json", "data"), root / "other")
    merge_index(root)
    assert {shard["format"] for shard in shards_of(root / INDEX)} == {"mds", "json", "csv"}
    with pytest.raises(NotYetError, match="format"):
        StreamingDataset(local=str(root))


def test_all_that_a_part_says_is_kept(root: Path) -> None:
    """Keys that this version does not know pass through, and so does the order of keys."""
    index = json.loads((root / "part2" / INDEX).read_bytes())
    index["shards"][0]["of_a_later_version"] = {"b": 1, "a": [None]}
    (root / "part2" / INDEX).write_text(json.dumps(index))
    merge_index(root)
    moved = next(shard for shard in shards_of(root / INDEX) if "of_a_later_version" in shard)
    moved["raw_data"]["basename"] = moved["raw_data"]["basename"].removeprefix("part2/")
    assert json.dumps(moved) == json.dumps(index["shards"][0])


# --- places


@pytest.mark.parametrize("keep_local", [True, False])
def test_a_pair_gets_the_index_where_the_shards_are_and_nothing_is_deleted(
    root: Path, tmp_path: Path, keep_local: bool
) -> None:
    """`keep_local` decides only whether the first of the pair gets a copy; shards stay in any case."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    merge_index((str(copy), str(root)), keep_local=keep_local)
    assert ids_in(root) == list(range(45))
    assert (copy / INDEX).exists() == keep_local
    assert contents_of(copy) == contents_of(root)
    if keep_local:
        assert (copy / INDEX).read_bytes() == (root / INDEX).read_bytes()


def test_a_folder_keeps_its_index_without_keep_local(root: Path) -> None:
    """The folder is the only place of the result."""
    before = contents_of(root)
    merge_index(str(root), False, 5)
    assert ids_in(root) == list(range(45))
    assert contents_of(root) == before


def test_pairs_in_the_list_use_the_file_that_exists(root: Path, tmp_path: Path) -> None:
    """The path if it exists, else the other; a folder below either side of `out` is the same part."""
    nowhere = tmp_path / "local"
    (nowhere / "part1").mkdir(parents=True)
    shutil.copy(root / "part1" / INDEX, nowhere / "part1" / INDEX)
    files = [(str(nowhere / part / INDEX), str(root / part / INDEX)) for part in ("part10", "part1")]
    merge_index(files, (str(nowhere), str(root)), keep_local=False)
    assert ids_in(root) == [*range(30, 45), *range(15)]
    assert os.listdir(nowhere) == ["part1"]


def test_indexes_from_elsewhere_stand_for_their_last_folder_if_the_shards_are_there(root: Path, tmp_path: Path) -> None:
    """The predecessor takes them so; without the shards it is an error that names the first one."""
    for part in ("part1", "part2"):
        os.renames(root / part / INDEX, tmp_path / "indexes" / part / INDEX)
    files = [str(tmp_path / "indexes" / part / INDEX) for part in ("part1", "part2")]
    merge_index(files, str(root))
    assert ids_in(root) == list(range(30))
    with pytest.raises(ObjectMissingError, match=r"(?s)lists part1/shard.00000.mds.*Check data availability!"):
        merge_index(files, str(tmp_path / "empty"))
    assert not (tmp_path / "empty").exists()


def test_home_folders_and_relative_paths_are_resolved(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder, and a relative path begins at the working directory."""
    monkeypatch.setenv("HOME", str(root.parent))
    monkeypatch.chdir(root)
    merge_index([f"~/root/part2/{INDEX}", f"./part1/{INDEX}", f"part10/../part10/{INDEX}"], "~/root")
    assert ids_in(root) == [*range(15, 30), *range(15), *range(30, 45)]


def test_the_roots_own_shards_may_be_named(root: Path) -> None:
    """An index in the root is a part when it is in the list."""
    shutil.copytree(root / "part1", root, dirs_exist_ok=True)
    merge_index([str(root / INDEX), str(root / "part2" / INDEX)], str(root))
    assert ids_in(root) == list(range(30))


# --- refusals: each leaves the root as it was


def refused(root: Path, kind: type[Exception], match: str, *arguments: Any, **options: Any) -> None:
    """Check that this merge raises the error and changes nothing."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(kind, match=match):
        merge_index(*arguments, **options)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_overlapping_parts_are_refused_and_both_named(root: Path) -> None:
    """A merged index and its parts; one part by two names; a part of which only some shards overlap."""
    merge_index([str(root / "part1" / INDEX), str(root / "part2" / INDEX)], str(root))
    named = [str(root / INDEX), str(root / "part1" / INDEX)]
    refused(root, OptionError, rf"(?s){named[0]} and {named[1]} overlap: .*part1/shard.00000.mds", named, str(root))
    os.symlink(root / "part1", root.parent / "part1")
    twice = [str(root / "part1" / INDEX), str(root.parent / "part1" / INDEX)]
    refused(root, OptionError, f"{twice[0]} and {twice[1]} overlap", twice, str(root))
    (root / "above").mkdir()
    for part in ("part1", "part2"):
        (root / part).rename(root / "above" / part)
    (root / INDEX).rename(root / "above" / INDEX)
    os.remove(root / "above/part2" / INDEX)
    refused(root, OptionError, f"above/{INDEX} and .*above/part1/{INDEX} overlap", str(root))


def test_a_dataset_in_the_root_is_not_hidden(root: Path) -> None:
    """The merged index would replace its index, so no reader would find its shards any more."""
    shutil.copytree(root / "part1", root, dirs_exist_ok=True)
    refused(root, OptionError, "shards that lie beside it .shard.00000.mds.", str(root))
    refused(root, OptionError, "would hide", [str(root / "part1" / INDEX)], str(root))
    copy = root.parent / "copy"
    shutil.copytree(root, copy)
    for file in (root / INDEX, *root.glob("shard.*")):
        file.unlink()
    refused(root, OptionError, f"{copy / INDEX} lists shards that lie beside it", (str(copy), str(root)))
    merge_index((str(copy), str(root)), keep_local=False)


def test_a_file_in_place_of_the_merged_index_must_be_an_index(root: Path) -> None:
    """Anything else is not replaced."""
    (root / INDEX).write_text('{"my": "notes"}')
    refused(root, OptionError, "is no index", str(root))


def test_missing_and_cut_shards_are_refused(root: Path) -> None:
    """A merged index lists only files that exist and are whole."""
    shard = root / "part2" / "shard.00001.mds"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    refused(root, ShardDamagedError, "part2/shard.00001.mds has .* it has", str(root))
    shard.unlink()
    refused(root, FileNotFoundError, r"part2/index.json lists part2/shard.00001.mds, which is not in", str(root))


def test_a_folder_may_have_compressed_shards_in_raw_form(tmp_path: Path) -> None:
    """Its readers allow that, too; a shard in neither form is missing."""
    root = golden_copy(tmp_path, "processes-merged")
    for part in root.glob("0*"):
        for shard in range(len(golden.index_of(str(part)).samples)):
            index = golden.index_of(str(part))
            (part / index.raw_name(shard)).write_bytes(golden.raw_shard(str(part), index, shard))
    for file in root.glob("*/*.zstd"):
        file.unlink()
    merge_index(str(root))
    next(root.glob("*/*.mds")).unlink()
    refused(root, ObjectMissingError, "mds.zstd, which is not in", str(root))


def test_a_damaged_part_is_named(root: Path) -> None:
    """Whatever is wrong with an index, the error names its file."""
    (root / "part2" / INDEX).write_bytes((root / "part2" / INDEX).read_bytes()[:-9])
    refused(root, IndexFormatError, f"{root}/part2/{INDEX} is not JSON", str(root))


def test_missing_indexes_raise_the_predecessors_errors(root: Path) -> None:
    """RuntimeError or FileNotFoundError, with its words; nothing to merge is an error, too."""
    missing = str(root / "part7" / INDEX)
    refused(root, RuntimeError, "Failed to download index.json", [missing], str(root))
    refused(root, FileNotFoundError, "Check data availability!", [(missing, "")], str(root))
    refused(root, PartMissingError, "part8", [(missing, str(root / "part8" / INDEX))], str(root))
    refused(root, PartMissingError, "part1", [str(root / "part1")], str(root))
    refused(root, IndexMissingError, "nothing to merge", str(root / "nowhere"))
    refused(root, OptionError, "is empty", [], str(root))
    shutil.copytree(root, root.parent / "copy")
    shutil.rmtree(root / "part10")
    pair = (str(root.parent / "copy"), str(root))
    refused(root, ObjectMissingError, f"part10/{INDEX} lies in the local folder, but not in {root}", pair)


def test_a_warning_names_shards_that_no_index_lists(root: Path) -> None:
    """A writer that failed wrote no index: its samples are left out, but not silently."""
    (root / "part2" / INDEX).unlink()
    with pytest.warns(UserWarning, match=r"listed by no index.json.*part2/shard.00000.mds is the first") as warned:
        merge_index(str(root))
    assert warned[0].filename == __file__
    assert ids_in(root) == [*range(15), *range(30, 45)]


@pytest.mark.parametrize(
    ("said", "arguments", "options"),
    [
        ("without its name", (), {}),
        ("without its name", (), {"out": "x"}),
        ("without its name", (None,), {}),
        ("out must be", ("",), {}),
        ("download_timeout", ("a",), {"download_timeout": 0}),
        ("download_timeout", ("a",), {"download_timeout": "60"}),
        ("download_timeout", ("a",), {"download_timeout": float("inf")}),
        ("storage_options", ("a",), {"storage_options": {"region": "x"}}),
        ("3 items", (("a", "b", "c"),), {}),
        ("item 1", (["a/index.json", 3], "x"), {}),
        ("item 0", ([("a", "b", "c")], "x"), {}),
        ("item 0", ([("s3://bucket/a/index.json", "b")], "x"), {}),
        ("item 0", ([("", None)], "x"), {}),
        ("a file", (["s3://bucket"], "x"), {}),
        ("nonsense", (["nonsense://bucket/index.json"], "x"), {}),
        ("nonsense", (["a/index.json"], "nonsense://bucket"), {}),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    said: str, arguments: tuple[Any, ...], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They raise a ValueError before anything is read or written."""
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, ValueError, said, *arguments, **options)


def test_one_index_named_in_two_folders_is_refused(root: Path) -> None:
    """A pair is one index: both its sides must lie in the same folder of the root."""
    copy = root.parent / "copy"
    pair = (str(copy / "part2" / INDEX), str(root / "part1" / INDEX))
    refused(root, OptionError, "in different folders of .*: part1 and part2", [pair], (str(copy), str(root)))
