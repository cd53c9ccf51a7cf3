"""What an index may say: every value of every shard object is checked here, so that a `ShardIndex` is valid.

An index is foreign data. The limits keep a hostile one from naming a file outside the dataset or asking for absurd
memory. Checks run over whole columns: a look at each value by itself would take most of the time of opening a dataset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NoReturn

from streaming.errors import FormatError, IndexFormatError, StreamingError
from streaming.formats import compression
from streaming.formats.fields import table
from streaming.formats.schema import SEPARATORS, Schema
from streaming.formats.shard_index import VERSION, ShardIndex
from streaming.formats.shard_tables import GrowingFiles, GrowingNumbers, GrowingRepeated

MAX_SHARDS: Final = 10**7
MAX_ROWS: Final = 1 << 31
MAX_FILE_BYTES: Final = (1 << 63) - 1

_FORMATS: Final = ("mds", "json", "xsv", "csv", "tsv")
_SPLIT_FORMATS: Final = frozenset(("json", "xsv", "csv", "tsv"))  # data and offsets in two files
_MDS_PARTS: Final = itemgetter("format", "column_names", "column_encodings", "column_sizes")
_HEX: Final = re.compile(r"[0-9A-Fa-f,]*")
_MISSING: Final = object()


class Reading:
    """An index while its shards are taken in, part by part; `where` names the file in errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._n = 0
        self._samples = GrowingNumbers()
        self._files = {key: GrowingFiles() for key in ("raw_data", "zip_data", "raw_meta", "zip_meta")}
        self._schemas: GrowingRepeated[Schema] = GrowingRepeated()
        self._compressions: GrowingRepeated[str | None] = GrowingRepeated()
        self._size_limits: GrowingRepeated[int | float | str | None] = GrowingRepeated()
        self._hashes: GrowingRepeated[tuple[str, ...]] = GrowingRepeated()
        self._names: list[str] = []
        self._any_meta = self._any_zip_meta = False

    def add(self, document: Any) -> None:
        """Check and take in the shards of one part. Raises IndexFormatError."""
        if not isinstance(document, dict):
            raise IndexFormatError(f"{self._where}: an index must be an object with 'shards' and 'version'")
        shards = document.get("shards")
        if not isinstance(shards, list):
            raise IndexFormatError(f"{self._where}: key 'shards' must be a list")
        if self._n + len(shards) > MAX_SHARDS:
            raise IndexFormatError(f"{self._where} lists more than {MAX_SHARDS} shards")
        if set(map(type, shards)) - {dict}:
            bad = next(i for i, shard in enumerate(shards) if type(shard) is not dict)
            raise IndexFormatError(f"{self._where}: shard {self._n + bad} must be an object")
        versions = self._column(shards, "version", int)
        if set(versions) - {VERSION}:
            i = next(i for i, version in enumerate(versions) if version != VERSION)
            self._fail(i, "version", f"must be {VERSION}, found {versions[i]}")
        samples = self._column(shards, "samples", int)
        self._check_within(samples, "samples", MAX_ROWS)
        self._samples.add(samples)
        self._size_limits.add(self._column(shards, "size_limit", int, float, str, type(None)))
        schemas = self._read_schemas(shards)
        self._schemas.add(schemas)
        compressions = self._read_compressions(shards)
        self._compressions.add(compressions)
        self._hashes.add(self._read_hash_names(shards))
        is_split = [schema.format in _SPLIT_FORMATS for schema in schemas]
        is_zip = [name is not None for name in compressions]
        self._add_files(shards, "raw_data", [True] * len(shards))
        self._add_files(shards, "zip_data", is_zip)
        self._any_meta |= self._add_files(shards, "raw_meta", is_split)
        self._any_zip_meta |= self._add_files(shards, "zip_meta", [a and b for a, b in zip(is_split, is_zip)])
        self._n += len(shards)

    def finished(self) -> ShardIndex:
        """The index, once all parts were added. Raises IndexFormatError if two files have one name."""
        self._refuse_names_used_twice()
        return ShardIndex(
            samples=self._samples.finished(),
            raw=self._files["raw_data"].finished(),
            zipped=self._files["zip_data"].finished(),
            raw_meta=self._files["raw_meta"].finished() if self._any_meta else None,
            zip_meta=self._files["zip_meta"].finished() if self._any_zip_meta else None,
            schema_table=self._schemas.finished(),
            compression_table=self._compressions.finished(),
            size_limit_table=self._size_limits.finished(),
            hash_table=self._hashes.finished(),
        )

    def _fail(self, i: int, key: str, problem: str) -> NoReturn:
        raise IndexFormatError(f"{self._where}: shard {self._n + i}: key {key!r} {problem}")

    def _column(self, objects: Sequence[Mapping[str, Any]], key: str, *kinds: type, path: str = "") -> list[Any]:
        """The value of `key` in each object; all must have it, with exactly one of these types (so no bool as int)."""
        try:
            values = list(map(itemgetter(key), objects))
        except KeyError:
            values = [found.get(key, _MISSING) for found in objects]
        wrong = set(map(type, values)) - set(kinds)
        if wrong:
            i, value = next((i, value) for i, value in enumerate(values) if type(value) in wrong)
            if value is _MISSING:
                self._fail(i, path + key, "is missing")
            self._fail(i, path + key, f"must be {_listed(kinds)}, found {_short(value)}")
        return values

    def _check_within(self, values: list[int], key: str, most: int) -> None:
        if values and not (min(values) >= 0 and max(values) <= most):
            i = next(i for i, value in enumerate(values) if not 0 <= value <= most)
            self._fail(i, key, f"must be between 0 and {most}, found {values[i]}")

    def _read_schemas(self, shards: list[dict[str, Any]]) -> list[Schema]:
        try:
            parts = list(map(_MDS_PARTS, shards))
            # 8.0 and True are equal to 8 and 1: only lists of exact types may be told apart by `==`.
            exact = set(map(type, chain.from_iterable(part[3] for part in parts))) <= {int, type(None)}
        except (KeyError, TypeError):
            exact = False
            parts = []
        if exact and parts and parts.count(parts[0]) == len(parts):
            return [self._schema(0, shards[0])] * len(shards)
        schemas: list[Schema] = []
        for i, shard in enumerate(shards):
            same = exact and i > 0 and parts[i] == parts[i - 1]  # merged datasets: long runs of each kind
            schemas.append(schemas[-1] if same else self._schema(i, shard))
        return schemas

    def _schema(self, i: int, shard: Mapping[str, Any]) -> Schema:
        """The schema of one shard object, checked."""
        name = shard.get("format")
        if name not in _FORMATS:
            self._fail(i, "format", f"must be one of {', '.join(_FORMATS)}, found {_short(name)}")
        columns = shard.get("columns")
        if name == "json":
            if not isinstance(columns, dict):
                self._fail(i, "columns", "must be an object of column names and encodings")
            names, encodings = tuple(columns), self._tuple(i, "columns", list(columns.values()), str)
        else:
            names = self._tuple(i, "column_names", shard.get("column_names"), str)
            encodings = self._tuple(i, "column_encodings", shard.get("column_encodings"), str)
        newline = separator = None
        sizes: tuple[int | None, ...] = (None,) * len(names)
        if name == "mds":
            sizes = self._tuple(i, "column_sizes", shard.get("column_sizes"), int, type(None))
            if any(size is not None and size < 0 for size in sizes):
                self._fail(i, "column_sizes", f"must not hold negative sizes, found {_short(list(sizes))}")
        else:
            newline = self._text(i, "newline", shard)
        if name == "xsv":
            separator = self._text(i, "separator", shard)
        elif name in SEPARATORS:
            separator = SEPARATORS[name]
        try:
            schema = Schema(name, names, encodings, tuple(size or None for size in sizes), newline, separator)
            if name == "mds":
                _check_sizes(schema)
        except StreamingError as error:
            raise IndexFormatError(f"{self._where}: shard {self._n + i}: {error}") from error
        return schema

    def _text(self, i: int, key: str, shard: Mapping[str, Any]) -> str:
        value = shard.get(key)
        if not isinstance(value, str) or not value:
            self._fail(i, key, f"must be text, found {_short(value)}")
        return value

    def _tuple(self, i: int, key: str, values: Any, *kinds: type) -> tuple[Any, ...]:
        if not isinstance(values, list) or not set(map(type, values)) <= set(kinds):
            self._fail(i, key, f"must be a list of {_listed(kinds)}, found {_short(values)}")
        return tuple(values)

    def _read_compressions(self, shards: list[dict[str, Any]]) -> list[str | None]:
        names = self._column(shards, "compression", str, type(None))
        for name in set(names):
            if name and not compression.is_known(name):
                self._fail(names.index(name), "compression", f"names an unknown algorithm: {_short(name)}")
        return [name or None for name in names]

    def _read_hash_names(self, shards: list[dict[str, Any]]) -> list[tuple[str, ...]]:
        lists = self._column(shards, "hashes", list)
        if set(map(type, chain.from_iterable(lists))) - {str}:
            i = next(i for i, names in enumerate(lists) if set(map(type, names)) - {str})
            self._fail(i, "hashes", f"must be a list of str, found {_short(lists[i])}")
        if lists and lists.count(lists[0]) == len(lists):
            return [tuple(lists[0])] * len(lists)
        return list(map(tuple, lists))

    def _add_files(self, shards: list[dict[str, Any]], key: str, wanted: list[bool]) -> bool:
        """Take in file `key` of the shards that ought to have one; the others must not name any. Returns if any has."""
        if True not in wanted:
            named = [shard.get(key) for shard in shards]
            if named.count(None) != len(named):
                i = next(i for i, file in enumerate(named) if file is not None)
                self._fail(i, key, f"must be null: this shard has no such file, found {_short(named[i])}")
            if key == "zip_data":
                self._column(shards, key, type(None))  # must be there, if only as null
            self._files[key].add_none(len(shards))
            return False
        if False in wanted:  # shards of several kinds in one part: merged datasets
            before = self._n
            for shard, want in zip(shards, wanted):
                self._add_files([shard], key, [want])
                self._n += 1  # so that an error names this shard
            self._n = before
            return True
        files = self._column(shards, key, dict)
        names = self._column(files, "basename", str, path=f"{key}.")
        self._check_names(names, f"{key}.basename")
        n_bytes = self._column(files, "bytes", int, path=f"{key}.")
        self._check_within(n_bytes, f"{key}.bytes", MAX_FILE_BYTES)
        hashes = self._column(files, "hashes", dict, path=f"{key}.")
        self._files[key].add(names, n_bytes, *self._joined_hashes(hashes, f"{key}.hashes"))
        return True

    def _joined_hashes(self, hashes: list[dict[str, Any]], key: str) -> tuple[list[str], list[str]]:
        """Of each file the names of its hashes and the digests, which must be hex; both joined by commas."""
        names = list(map(",".join, hashes))
        try:
            digests = list(map(",".join, map(dict.values, hashes)))
        except TypeError:
            digests = ["not text"]
        whole = ",".join(digests)
        n_commas = sum(map(len, hashes)) + hashes.count({}) - 1  # a comma in a name or digest would make more
        if not ",".join(names).count(",") == whole.count(",") == n_commas or not _HEX.fullmatch(whole):
            i = next(i for i, found in enumerate(hashes) if not _are_hashes(found))
            self._fail(i, key, f"must hold names without commas and hex digests, found {_short(hashes[i])}")
        return names, digests

    def _check_names(self, names: list[str], key: str) -> None:
        """Basenames stay inside the dataset's folder, and each file is named once."""
        if not _are_safe(names):
            i = next(i for i, name in enumerate(names) if not _are_safe([name]))
            self._fail(
                i,
                key,
                "must be a relative path without '..', backslash or empty parts, and not the index itself, "
                f"found {_short(names[i])}",
            )
        self._names.append("\0".join(names))

    def _refuse_names_used_twice(self) -> None:
        """Done once, at the end: a set that grows meanwhile would keep 10⁵ texts in the way of the parser."""
        names = "\0".join(self._names).split("\0")
        if len(set(names)) != len(names):
            seen: set[str] = set()
            for name in names:
                if name in seen:
                    raise IndexFormatError(f"{self._where}: key 'basename': two files have the name {_short(name)}")
                seen.add(name)


def _are_safe(names: list[str]) -> bool:
    """Whether all of these may be joined to a folder without leaving it or hitting our own files."""
    joined = "\0".join(names)
    if joined.count("\0") != len(names) - 1 or "\\" in joined:
        return False
    whole = f"\0{joined}\0"
    if any(own in whole for own in ("\0index.json\0", "/index.json\0", "\0.streaming/")):
        return False
    parts = whole.replace("\0", "/")
    return not any(bad in parts for bad in ("//", "/./", "/../"))


def _are_hashes(found: dict[str, Any]) -> bool:
    return all(
        "," not in name and type(digest) is str and "," not in digest and _HEX.fullmatch(digest)
        for name, digest in found.items()
    )


def _check_sizes(schema: Schema) -> None:
    """Fixed-size columns must have the size of their encoding, others none; unknown encodings are believed."""
    for name, encoding, size in zip(schema.column_names, schema.column_encodings, schema.column_sizes, strict=True):
        if not table.is_known(encoding):
            continue
        expected = table.size_of(encoding)
        if expected != size:
            raise FormatError(f"key 'column_sizes': column {name!r} ({encoding}) has size {size}, must be {expected}")


def _listed(kinds: tuple[type, ...]) -> str:
    return " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
