"""Values that an index must not hold: each is refused with its shard and key in the message."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from streaming.errors import IndexFormatError
from streaming.formats.index import dump_index, file_entry, parse_index

SHARD = {
    "column_encodings": ["int", "ndarray:uint8:2"],
    "column_names": ["a", "b"],
    "column_sizes": [8, 2],
    "compression": None,
    "format": "mds",
    "hashes": ["md5"],
    "raw_data": file_entry("shard.00000.mds", 100, {"md5": "00ff"}),
    "samples": 3,
    "size_limit": 1 << 26,
    "version": 2,
    "zip_data": None,
}


def index_with(change: Callable[[dict[str, Any]], Any], n_before: int = 2) -> bytes:
    """An index of `n_before` valid shards and a changed one after them."""
    shards = []
    for i in range(n_before + 1):
        shard = copy.deepcopy(SHARD)
        shard["raw_data"]["basename"] = f"shard.{i:05}.mds"  # type: ignore[index]
        shards.append(shard)
    change(shards[-1])
    return json.dumps({"version": 2, "shards": shards}).encode()


def named(name: str) -> Callable[[dict[str, Any]], Any]:
    """A change that sets the basename."""
    return lambda shard: shard["raw_data"].update(basename=name)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda s: s.update(version=1), "version"),
        (lambda s: s.update(version=2.0), "version"),
        (lambda s: s.pop("samples"), "samples"),
        (lambda s: s.update(samples=-1), "samples"),
        (lambda s: s.update(samples=2**31 + 1), "samples"),
        (lambda s: s.update(samples=True), "samples"),
        (lambda s: s.update(samples="3"), "samples"),
        (lambda s: s.update(format="parquet"), "format"),
        (lambda s: s.update(format=None), "format"),
        (lambda s: s.update(format=["mds"]), "format"),
        (lambda s: s.update(column_names=["a"]), "names"),
        (lambda s: s.update(column_names=["a", "a"]), "'a' is listed twice"),
        (lambda s: s.update(column_names=[1, 2]), "column_names"),
        (lambda s: s.update(column_encodings=None), "column_encodings"),
        (lambda s: s.update(column_sizes=[8, 3]), "column_sizes"),
        (lambda s: s.update(column_sizes=[8, None]), "column_sizes"),
        (lambda s: s.update(column_sizes=[8.0, 2]), "column_sizes"),
        (lambda s: s.update(column_sizes=[8, True]), "column_sizes"),
        (lambda s: s.update(column_sizes=[8, -2]), "column_sizes"),
        (lambda s: s.update(column_encodings=["str", "ndarray:uint8:2"]), "column_sizes"),
        (lambda s: s.update(column_encodings=["int", "ndarray:uint8:two"]), "ndarray:uint8:two"),
        (lambda s: s.update(column_encodings=["x", "y"], column_sizes=[2**31, 2**31]), "4 GiB"),
        (lambda s: s.update(compression="lz4"), "compression"),
        (lambda s: s.update(compression="zstd"), "zip_data"),
        (lambda s: s.update(compression=3), "compression"),
        (lambda s: s.update(zip_data=file_entry("x", 1, {})), "zip_data"),
        (lambda s: s.pop("zip_data"), "zip_data"),
        (lambda s: s.update(hashes=["md5", 1]), "hashes"),
        (lambda s: s.update(hashes="md5"), "hashes"),
        (lambda s: s.update(size_limit=[1]), "size_limit"),
        (lambda s: s.update(raw_data=None), "raw_data"),
        (lambda s: s["raw_data"].pop("bytes"), "raw_data.bytes"),
        (lambda s: s["raw_data"].update(bytes=-1), "raw_data.bytes"),
        (lambda s: s["raw_data"].update(bytes=2**32), "raw_data.bytes"),
        (lambda s: s["raw_data"].update(bytes=2**63), "raw_data.bytes"),
        (lambda s: s["raw_data"].update(bytes=2**64), "raw_data.bytes"),
        (lambda s: s["raw_data"].update(bytes="100"), "raw_data.bytes"),
        (lambda s: s["raw_data"].update(hashes={"md5": 5}), "raw_data.hashes"),
        (lambda s: s["raw_data"].update(hashes={"md5": "xyz"}), "raw_data.hashes"),
        (lambda s: s["raw_data"].update(hashes={"md5": "0,0"}), "raw_data.hashes"),
        (lambda s: s["raw_data"].update(hashes=[]), "raw_data.hashes"),
        (lambda s: s["raw_data"].update(hashes={"md5,sha1": "00"}), "raw_data.hashes"),
        *(
            (named(name), "raw_data.basename")
            for name in (
                "",
                ".",
                "..",
                "../x",
                "a/../x",
                "a/..",
                "/etc/passwd",
                "a//b",
                "a/",
                "./a",
                "a\\b",
                "a\0b",
                "index.json",
                "a/index.json",
                ".streaming/x",
                ".streaming-source",
                "a/.Streaming-source",
                ".remotes/x",
                ".shard.00000.mds.table",
                "a/.x.table",
                ".shard.00000.mds.0123456789abcdef.tmp",
            )
        ),
        (lambda s: s["raw_data"].update(basename=None), "raw_data.basename"),
    ],
)
@pytest.mark.parametrize("n_before", [0, 2])
def test_a_bad_value_is_refused_with_its_place(change: Any, key: str, n_before: int) -> None:
    """The error names the file, the shard and the key."""
    with pytest.raises(IndexFormatError) as caught:
        parse_index(index_with(change, n_before), where="my/index.json")
    assert "my/index.json" in str(caught.value)
    assert f"shard {n_before}" in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["..x", "x..", "a/.b", "a/..b/c", "…", "my index.json", "x.streaming/y", ".hidden", ".table", "x.table", ".x.tmp"],
)
def test_odd_but_harmless_names_are_accepted(name: str) -> None:
    """Only names that leave the folder or name the library's own files are refused."""
    assert parse_index(index_with(named(name)), where="x").raw_name(2) == name


def test_two_files_of_one_name_are_refused() -> None:
    """Two raw files, or a raw file of one shard and a compressed file of another."""
    with pytest.raises(IndexFormatError, match=r"shard\.00000\.mds"):
        parse_index(index_with(named("shard.00000.mds")), where="x")

    def compressed(shard: dict[str, Any]) -> None:
        shard.update(compression="zstd", zip_data=file_entry("shard.00001.mds", 1, {}))

    with pytest.raises(IndexFormatError, match=r"shard\.00001\.mds"):
        parse_index(index_with(compressed), where="x")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"shards": []}',
        b'{"version": 2}',
        b'{"shards": [], "version": 1}',
        b'{"shards": [], "version": true}',
        b'{"shards": [], "version": "2"}',
        b'{"shards": {}, "version": 2}',
        b'{"shards": [[]], "version": 2}',
        b'{"shards": [], "version": 2} x',
        b'{"shards": [], "version": 2, "x": "\xff"}',
        b"[" * 100_000,
    ],
)
def test_a_text_that_is_no_index_is_refused(text: bytes) -> None:
    """Whatever the text is, the error is an IndexFormatError and names the file."""
    with pytest.raises(IndexFormatError, match="my index"):
        parse_index(text, where="my index")


def test_unknown_keys_and_unknown_encodings_are_accepted() -> None:
    """Later versions may add keys, and users may register encodings before they read."""

    def change(shard: dict[str, Any]) -> None:
        shard.update(more=1, column_encodings=["int", "mine:2"])

    index = parse_index(index_with(change), where="x")
    assert index.schema(2).column_encodings == ("int", "mine:2")
    assert index.schema_of.tolist() == [0, 0, 1]
    assert len(index.schemas) == 2


def test_an_empty_index() -> None:
    """A dataset without shards is a dataset."""
    text = dump_index([])
    assert text == b'{"shards": [], "version": 2}'
    index = parse_index(text, where="x")
    assert (index.n_shards, index.n_samples, index.schemas) == (0, 0, ())
    assert not index.is_compressed


def test_reading_an_index_imports_neither_images_nor_pickle_nor_torch() -> None:
    """A module that is slow or dangerous to import stays out until a column needs it."""
    code = (
        "import sys, streaming.formats.index, streaming.formats.layout\n"
        "slow = ('PIL', 'torch', 'obstore', 'streaming.formats.fields.pickles')\n"
        "print([name for name in slow if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
