"""Parses an index, and checks every value of every shard object, so that each `ShardIndex` is valid.

An index is foreign data. The limits keep a hostile one from naming a file outside the dataset or from taking absurd
memory. The structs state types and bounds, which the JSON parser checks. The other checks run over whole columns, and
over the keys that a run of shards has in common only once a run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Annotated, Final, Literal, NoReturn

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from numpy.typing import NDArray

from streaming.errors import FormatError, IndexFormatError, IndexSyntaxError, StreamingError
from streaming.formats import compression
from streaming.formats.fields import table
from streaming.formats.index_hashes import BadHashesError, hash_columns
from streaming.formats.schema import SEPARATORS, Schema
from streaming.formats.shard_index import VERSION, ShardIndex
from streaming.formats.shard_tables import Files, Repeated, Texts

MAX_SHARDS: Final = 10**7
MAX_ROWS: Final = 1 << 31
MAX_FILE_BYTES: Final = (1 << 63) - 1
MAX_MDS_BYTES: Final = (1 << 32) - 1
_OWN_NAME: Final = re.compile(r"/\.(streaming|remotes/|[^/]+\.table/|[^/]+\.[0-9a-f]{16}\.tmp/)", re.IGNORECASE)
"""Names that this library gives its own files in a cache: a shard of such a name would replace one."""


# --- the objects of an index. Without `gc=False` the garbage collector would take most of the time.


class _FileEntry(Struct, gc=False):
    basename: str
    n_bytes: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)] = msgspec.field(name="bytes")
    hashes: Raw


class _ShardEntry(Struct, gc=False):
    """A shard object. Long runs of shards share the raw values, which are parsed once a run as a `_ShardKind`."""

    compression: str | None
    format: str
    hashes: Raw
    raw_data: _FileEntry
    samples: Annotated[int, Meta(ge=0, le=MAX_ROWS)]
    size_limit: int | float | str | None
    version: Literal[2]
    zip_data: _FileEntry | None
    column_encodings: Raw | UnsetType = UNSET
    column_names: Raw | UnsetType = UNSET
    column_sizes: Raw | UnsetType = UNSET
    columns: Raw | UnsetType = UNSET
    newline: Raw | UnsetType = UNSET
    raw_meta: _FileEntry | None = None
    separator: Raw | UnsetType = UNSET
    zip_meta: _FileEntry | None = None


class _IndexDocument(Struct):
    shards: Annotated[list[_ShardEntry], Meta(max_length=MAX_SHARDS)]
    version: Literal[2]


_Text = Annotated[str, Meta(min_length=1)]


class _ShardKind(Struct, tag_field="format"):
    compression: str | None
    hashes: list[str]
    size_limit: int | float | str | None


class _JsonKind(_ShardKind, tag="json"):
    columns: dict[str, str]
    newline: _Text


class _MdsKind(_ShardKind, tag="mds"):
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[Annotated[int, Meta(ge=0)] | None]


class _CsvKind(_ShardKind, tag="csv"):
    column_names: list[str]
    column_encodings: list[str]
    newline: _Text


class _TsvKind(_CsvKind, tag="tsv"):
    pass


class _XsvKind(_CsvKind, tag="xsv"):
    separator: _Text


_AnyShardKind = _MdsKind | _JsonKind | _CsvKind | _TsvKind | _XsvKind
_index_decoder: Final = msgspec.json.Decoder(_IndexDocument)
_kind_decoder: Final[msgspec.json.Decoder[_AnyShardKind]] = msgspec.json.Decoder(_AnyShardKind)
_kind_key: Final = attrgetter(
    "compression", "format", "hashes", "size_limit", "column_encodings", "column_names", "column_sizes", "columns",
    "newline", "separator",
)  # fmt: skip


# --- from text to a ShardIndex


def read_index(text: bytes, *, where: str) -> ShardIndex:
    """Parse an index; `where` names the file in errors. Raises IndexFormatError."""
    try:
        if not text.isascii():
            text.decode()  # the parser does not check the values that it skips
        shards = _index_decoder.decode(text).shards
    except msgspec.ValidationError as error:
        raise _refusal(where, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IndexSyntaxError(f"{where} is not JSON ({error}); it may be cut or no index at all") from error
    kinds, schemas, which = _read_kinds(where, shards)
    is_split = np.array([schema.format != "mds" for schema in schemas], np.bool_)[which]  # data and offsets apart
    is_zip = np.array([bool(kind.compression) for kind in kinds], np.bool_)[which]
    listed: dict[str, tuple[Sequence[_FileEntry | None], NDArray[np.bool_]]] = {
        "raw_data": ([shard.raw_data for shard in shards], np.ones(len(shards), np.bool_)),
        "zip_data": ([shard.zip_data for shard in shards], is_zip),
        "raw_meta": ([shard.raw_meta for shard in shards], is_split),
        "zip_meta": ([shard.zip_meta for shard in shards], is_split & is_zip),
    }
    files = {key: _read_files(where, key, some, wanted) for key, (some, wanted) in listed.items()}
    for i in np.flatnonzero(~is_split & (files["raw_data"].n_bytes > MAX_MDS_BYTES)).tolist():
        n_bytes = shards[i].raw_data.n_bytes
        _fail(where, i, "raw_data.bytes", f"must be below 2**32, as far as the offsets of MDS reach, found {n_bytes:,}")
    _refuse_names_used_twice(where, [file.basename for some, _ in listed.values() for file in some if file])
    return ShardIndex(
        samples=np.array([shard.samples for shard in shards], np.int64),
        raw=files["raw_data"],
        zipped=files["zip_data"],
        raw_meta=files["raw_meta"] if is_split.any() else None,
        zip_meta=files["zip_meta"] if (is_split & is_zip).any() else None,
        schema_table=Repeated.of(schemas).at(which),
        compression_table=Repeated.of([kind.compression or None for kind in kinds]).at(which),
        size_limit_table=Repeated.of([kind.size_limit for kind in kinds]).at(which),
        hash_table=Repeated.of([tuple(kind.hashes) for kind in kinds]).at(which),
    )


def _read_kinds(where: str, shards: list[_ShardEntry]) -> tuple[list[_AnyShardKind], list[Schema], NDArray[np.intp]]:
    """The distinct kinds of shards, the schema of each kind, and intp (shard,) -> index into both."""
    number: dict[bytes, int] = {}
    kinds: list[_AnyShardKind] = []
    schemas: list[Schema] = []
    numbers: list[int] = []
    lengths = [sum(1 for _ in run) for _, run in groupby(map(_kind_key, shards))]
    begins = [0, *accumulate(lengths)]
    for i in begins[:-1]:
        try:
            kind = _kind_decoder.decode(msgspec.json.encode(shards[i]))
            text = msgspec.json.encode(kind)
            if text not in number:
                number[text] = len(number)
                kinds.append(kind)
                schemas.append(_schema_of(kind))
        except msgspec.ValidationError as error:
            raise _refusal(where, error, f".shards[{i}]") from error
        except (msgspec.DecodeError, RecursionError, StreamingError) as error:
            raise IndexFormatError(f"{where}: shard {i}: {error}") from error
        numbers.append(number[text])
        if kind.compression and not compression.is_known(kind.compression):
            _fail(where, i, "compression", f"names an unknown algorithm: {_short(kind.compression)}")
    return kinds, schemas, np.repeat(np.array(numbers, np.intp), np.array(lengths, np.intp))


def _schema_of(kind: _AnyShardKind) -> Schema:
    """Format and columns of a kind of shards. Raises StreamingError if they contradict each other."""
    if isinstance(kind, _MdsKind):
        sizes = tuple(size or None for size in kind.column_sizes)
        schema = Schema("mds", tuple(kind.column_names), tuple(kind.column_encodings), sizes)
        _check_sizes(schema)
        return schema
    name = str(kind.__struct_config__.tag)
    if isinstance(kind, _JsonKind):
        names, encodings = tuple(kind.columns), tuple(kind.columns.values())
    else:
        names, encodings = tuple(kind.column_names), tuple(kind.column_encodings)
    separator = kind.separator if isinstance(kind, _XsvKind) else SEPARATORS.get(name)
    return Schema(name, names, encodings, (None,) * len(names), kind.newline, separator)


def _check_sizes(schema: Schema) -> None:
    """Check that each column has the size that its encoding fixes, if any. Of unknown encodings any size is valid."""
    for name, encoding, size in zip(schema.column_names, schema.column_encodings, schema.column_sizes, strict=True):
        if not table.is_known(encoding):
            continue
        expected = table.size_of(encoding)
        if expected != size:
            raise FormatError(f"key 'column_sizes': column {name!r} ({encoding}) has size {size}, must be {expected}")


def _read_files(where: str, key: str, listed: Sequence[_FileEntry | None], wanted: NDArray[np.bool_]) -> Files:
    """Collect file `key` of the shards that must have one (`wanted`), and check that the others name none."""
    there = np.array([file is not None for file in listed], np.bool_)
    for i in np.flatnonzero(there != wanted).tolist():
        _fail(where, i, key, "is missing" if wanted[i] else "must be null: this shard has no such file")
    shard_of = np.flatnonzero(there)
    files = [file for file in listed if file is not None]
    names = [file.basename for file in files]
    if not _are_safe(names):
        i, name = next((i, name) for i, name in enumerate(names) if not _are_safe([name]))
        problem = "must be a relative path without '..', backslash or empty parts, and not the index itself"
        _fail(where, int(shard_of[i]), f"{key}.basename", f"{problem}, found {_short(name)}")
    try:
        hash_names, digests = hash_columns([file.hashes for file in files])
    except BadHashesError as error:
        _fail(where, int(shard_of[error.i]), f"{key}.hashes", str(error))
    n_bytes = np.full(len(listed), -1, np.int64)
    n_bytes[there] = [file.n_bytes for file in files]
    hash_table = Repeated.of(["", *hash_names]).at(np.where(there, np.cumsum(there), 0))
    return Files(Texts.of(names).spread(there), n_bytes, hash_table, digests.spread(there))


def _are_safe(names: Sequence[str]) -> bool:
    """Whether all names, joined to a folder, stay inside it and name none of this library's own files."""
    whole = "\0".join(["", *names, ""])
    if whole.count("\0") != len(names) + 1 or "\\" in whole:
        return False
    if any(own in whole for own in ("\0index.json\0", "/index.json\0")):
        return False
    parts = whole.replace("\0", "/") if names else ""
    return not any(bad in parts for bad in ("//", "/./", "/../")) and _OWN_NAME.search(parts) is None


def _refuse_names_used_twice(where: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise IndexFormatError(f"{where}: key 'basename': two files have the name {_short(name)}")
            seen.add(name)


# --- errors

_WORDS: Final = (
    ("Expected ", "must be "),
    (", got ", ", found "),
    ("Invalid enum value ", f"must be {VERSION}, found "),
    ("Invalid value ", "must be one of mds, json, xsv, csv, tsv, found "),
)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_SHARD: Final = re.compile(r"\.shards\[(\d+)\]")


def _fail(where: str, i: int, key: str, problem: str) -> NoReturn:
    raise IndexFormatError(f"{where}: shard {i}: key {key!r} {problem}")


def _refusal(where: str, error: msgspec.ValidationError, path: str = "") -> IndexFormatError:
    """Translate the parser's error; `path` is the place of the parsed value in the index, as in `.shards[3]`."""
    problem, _, inner = str(error).partition(" - at `$")
    path += inner.removesuffix("`")
    if missing := _MISSING.fullmatch(problem):
        path, problem = f"{path}.{missing[1]}", "is missing"
    shard = _SHARD.match(path)
    if shard is not None:
        where, path = f"{where}: shard {shard[1]}", path[shard.end() :]
    for theirs, ours in _WORDS:
        problem = problem.replace(theirs, ours, 1)
    what = f"key {path.removeprefix('.')!r}" if path else "the value"
    return IndexFormatError(f"{where}: {what} {problem[:120]}")


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else repr(text[:77]) + "…"
