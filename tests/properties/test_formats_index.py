"""Laws of the index: parsing inverts dumping, whatever the form of the text, and no text breaks the parser."""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from streaming.errors import IndexFormatError
from streaming.formats.index import dump_index, file_entry, parse_index
from streaming.formats.index_hashes import hash_columns

HEX = st.text("0123456789abcdef", min_size=8, max_size=8)
PART = st.text(st.characters(exclude_characters="/\\\0", codec="utf-8"), min_size=1, max_size=6).filter(
    lambda text: text not in (".", "..", "index.json", ".streaming")
)
SCHEMAS: list[dict[str, Any]] = [
    {"format": "mds", "column_names": ["a", "}, {"], "column_encodings": ["int", "mine:x"], "column_sizes": [8, 3]},
    {"format": "mds", "column_names": ["é"], "column_encodings": ["str"], "column_sizes": [None]},
    {"format": "json", "columns": {"a": "int", "b": "str"}, "newline": "\n"},
    {"format": "xsv", "column_names": ["a"], "column_encodings": ["int"], "newline": "\r\n", "separator": "|"},
    {"format": "tsv", "column_names": ["a"], "column_encodings": ["str"], "newline": "\n"},
]


@st.composite
def entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Shard objects of a valid index, of one or several kinds."""
    kinds = draw(st.lists(st.sampled_from(SCHEMAS), min_size=1, max_size=3))
    stems = draw(st.lists(st.lists(PART, min_size=1, max_size=3).map("/".join), max_size=8, unique=True))
    algorithms = draw(st.lists(st.sampled_from(["md5", "sha1", "xxh64"]), unique=True))
    compression = draw(st.sampled_from([None, "zstd:3", "gz"]))
    shards = []
    for i, stem in enumerate(stems):
        schema = draw(st.sampled_from(kinds))

        most = 2**32 - 1 if schema["format"] == "mds" else 2**63 - 1

        def file(suffix: str, stem: str = f"{stem}.{i}", most: int = most) -> dict[str, Any]:
            hashes = {name: draw(HEX) for name in algorithms}
            return file_entry(stem + suffix, draw(st.integers(0, most)), hashes)

        shard = {
            **copy.deepcopy(schema),
            "compression": compression,
            "hashes": algorithms,
            "raw_data": file(".raw"),
            "samples": draw(st.integers(0, 2**31)),
            "size_limit": draw(st.sampled_from([None, 1 << 26, "64mb"])),
            "version": 2,
            "zip_data": compression and file(".zip"),
        }
        if schema["format"] != "mds":
            shard["raw_meta"] = file(".meta")
            shard["zip_meta"] = compression and file(".meta.zip")
        shards.append(shard)
    return shards


@given(shards=entries())
@settings(max_examples=100)
def test_parsing_inverts_dumping(shards: list[dict[str, Any]]) -> None:
    """Every value of every shard object is kept, and equal indexes compare equal, even after a pickle."""
    text = dump_index(shards)
    index = parse_index(text, where="x")
    assert [index.entry(i) for i in range(index.n_shards)] == shards
    assert parse_index(text, where="y") == index
    assert pickle.loads(pickle.dumps(index)) == index
    assert index.n_samples == sum(shard["samples"] for shard in shards)
    assert index.is_compressed == any(shard["zip_data"] for shard in shards)


@given(
    shards=entries(), indent=st.sampled_from([None, 1]), merged=st.booleans(), is_ascii=st.booleans(), data=st.data()
)
@settings(max_examples=100)
def test_the_form_of_the_text_does_not_matter(
    shards: list[dict[str, Any]], indent: int | None, merged: bool, is_ascii: bool, data: st.DataObject
) -> None:
    """White space, escapes, the order of keys and unknown keys change nothing."""
    shuffled = [dict(data.draw(st.permutations(list(shard.items())))) for shard in shards]
    document = (
        {"version": 2, "shards": shuffled} if merged else {"shards": shuffled, "version": 2, "more": {"x": [{}, {}]}}
    )
    text = json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode()
    index = parse_index(text, where="x")
    assert [index.entry(i) for i in range(index.n_shards)] == shards


HASHES = st.dictionaries(st.sampled_from(["md5", "sha1", "é", ": ", "}"]), st.sampled_from(["", "00", "ab", "0Fab"]))


@given(forms=st.lists(HASHES, max_size=2), data=st.data(), indent=st.sampled_from([None, 1]), is_ascii=st.booleans())
@settings(max_examples=200)
def test_hashes_are_kept_in_any_form(
    forms: list[dict[str, str]], data: st.DataObject, indent: int | None, is_ascii: bool
) -> None:
    """Hashes of one form are parsed all at once; the result is that of parsing each alone."""
    files = [
        {name: data.draw(st.sampled_from([digest, digest[::-1]])) for name, digest in form.items()}
        for form in forms
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    texts = [Raw(json.dumps(hashes, indent=indent, ensure_ascii=is_ascii).encode()) for hashes in files]
    names, digests = hash_columns(texts)
    assert names == [",".join(hashes) for hashes in files]
    assert [digests[i] for i in range(len(digests))] == [",".join(hashes.values()) for hashes in files]


WRONG = st.sampled_from([None, True, -1, 2**63, 2**64, 1.5, "", "..", "/x", "a\\b", [], {}, [None], [-1], {"a": 1}])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


@given(shards=entries(), data=st.data())
@settings(max_examples=200)
def test_a_wrong_value_anywhere_is_an_index_error(shards: list[dict[str, Any]], data: st.DataObject) -> None:
    """A wrong value in any place gives a valid index or an IndexFormatError, never another error."""
    document: Any = json.loads(dump_index(shards))
    place = data.draw(st.sampled_from(places(document)))
    wrong = data.draw(WRONG)
    if not place:
        document = wrong
    else:
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        if data.draw(st.booleans()):
            inner[place[-1]] = wrong
        else:
            del inner[place[-1]]
    with suppress(IndexFormatError):
        index = parse_index(json.dumps(document).encode(), where="damaged index")
        assert parse_index(dump_index(index.entry(i) for i in range(index.n_shards)), where="x") == index


@given(shards=entries(), data=st.data())
@settings(max_examples=100)
def test_no_bytes_break_the_parser(shards: list[dict[str, Any]], data: st.DataObject) -> None:
    """An index whose bytes were changed or cut is parsed or raises IndexFormatError."""
    text = bytearray(dump_index(shards))
    for _ in range(data.draw(st.integers(0, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with suppress(IndexFormatError):
        parse_index(bytes(text[: data.draw(st.integers(0, len(text)))]), where="x")
