"""The parts of a merged dataset: which indexes are parts, in which order, and what the merged index says.

Pure: indexes in, an index out. The caller says which files exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streaming.errors import IndexFormatError, ObjectMissingError, OptionError, ShardDamagedError
from streaming.formats.index import INDEX_NAME, VERSION, parse_index

UNKNOWN_SIZE: Final = -1
_RAW: Final = ("raw_data", "raw_meta")
_ZIPPED: Final = ("zip_data", "zip_meta")
_DIGITS: Final = re.compile("([0-9]+)")
_SHARD: Final = re.compile(r"(?:.*/)?shard\.[0-9]{5,}\.[^/]+", re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class DatasetPart:
    """An index to merge. Its file names are already relative to the root.

    `folder` is its folder below the root, "" for the root itself; `shown` names it in messages.
    """

    shown: str
    folder: str
    shards: tuple[Mapping[str, Any], ...]
    names: frozenset[str]  # of all files that it lists


def read_part(data: bytes, *, folder: str, shown: str) -> DatasetPart:
    """Make a part of the bytes of its index. Raises IndexFormatError."""
    parse_index(data, where=shown)  # foreign data: it is checked before anything is made of it
    shards = tuple(_moved(shard, folder) for shard in json.loads(data)["shards"])
    names = frozenset(file["basename"] for shard in shards for file in _files(shard, _RAW + _ZIPPED))
    return DatasetPart(shown, folder, shards, names)


def relative_folder(file: str, root: str) -> str | None:
    """The folder of `file` relative to `root`, "" for the root itself; None if the file lies elsewhere.

    >>> relative_folder("s3://bucket/data/a/b/index.json", "s3://bucket/data")
    'a/b'
    """
    top = root if root.endswith("/") else f"{root}/"
    return file.removeprefix(top).rpartition("/")[0] if file.startswith(top) else None


def natural_order(path: str) -> tuple[tuple[tuple[str | int, ...], ...], str]:
    """A sort key: numbers in names count as numbers, and a folder comes before its contents.

    >>> sorted(["part10", "part2/b", "part2", "part1"], key=natural_order)
    ['part1', 'part2', 'part2/b', 'part10']
    """
    steps = [_DIGITS.split(step) for step in path.split("/")]
    words = (tuple(int(word) if i % 2 else word for i, word in enumerate(step)) for step in steps)
    return tuple(words), path  # "01" and "1" are the same number


def without_summaries(parts: Iterable[DatasetPart]) -> list[DatasetPart]:
    """The parts of one root in natural order, without those that only repeat what indexes below them list.

    Such an index is the result of an earlier merge. To take it too would double its shards; to take it in place of its
    parts would leave out shards that have come since.
    """
    kept: list[DatasetPart] = []
    listed: set[str] = set()
    for part in sorted(parts, key=lambda part: part.folder.count("/"), reverse=True):  # an index lies above its files
        if part.names and part.names <= listed:
            continue
        kept.append(part)
        listed |= part.names
    return sorted(kept, key=lambda part: natural_order(part.folder))


def merged_index(parts: Sequence[DatasetPart], *, shown: str) -> bytes:
    """The bytes of the index that lists the shards of all parts, one part after the other.

    All that a part says about a shard is kept, and the order of its keys. Raises OptionError if two parts list the same
    file, IndexFormatError if the merged index passes a limit.
    """
    owners: dict[str, DatasetPart] = {}
    for part in parts:
        if shared := part.names & owners.keys():
            name = min(shared)
            raise OptionError(
                f"{owners[name].shown} and {part.shown} overlap: both list {name}; merge each part once, and not both "
                "a merged index and what it was made of"
            )
        owners |= dict.fromkeys(part.names, part)
    shards = [shard for part in parts for shard in part.shards]
    data = json.dumps({"version": VERSION, "shards": shards}).encode()
    parse_index(data, where=shown)
    return data


def check_files(
    parts: Iterable[DatasetPart], size_of: Callable[[str], int | None], *, where: str, raw_will_do: bool = False
) -> None:
    """Check that every shard's files exist in their stored form, which is compressed if the shard is.

    `size_of(name)` is a file's size in bytes, UNKNOWN_SIZE, or None if there is no such file; `where` names the place
    in messages. `raw_will_do`: the raw file will do in place of the compressed one. Raises ObjectMissingError,
    ShardDamagedError.
    """
    for part in parts:
        for shard in part.shards:
            stored = _files(shard, _ZIPPED) or _files(shard, _RAW)
            forms = (stored, _files(shard, _RAW)) if raw_will_do else (stored,)
            wrong = [next(_wrong_files(form, size_of), None) for form in forms]
            if None not in wrong:
                raise _complaint(part, wrong[0] or {}, size_of, where)


def check_nothing_is_hidden(standing: bytes, parts: Iterable[DatasetPart], *, shown: str) -> None:
    """Check that the merged index may replace the index `standing`: a merged one may go, a dataset's own may not.

    Raises OptionError if shards of the root itself would be in no index any more, or if `standing` is no index.
    """
    try:
        names = read_part(standing, folder="", shown=shown).names
    except IndexFormatError as error:
        raise OptionError(
            f"there is a file where the merged index belongs, and it is no index: {error}; move it away"
        ) from error
    hidden = {name for name in names if "/" not in name}.difference(*(part.names for part in parts))
    if hidden:
        raise OptionError(
            f"{shown} lists shards that lie beside it ({min(hidden)}), which the merged index would hide; move them "
            f"and their {INDEX_NAME} into a folder of their own, or name this index among those to merge"
        )


def unlisted_shards(names: Iterable[str], parts: Iterable[DatasetPart]) -> list[str]:
    """The files among `names` that look like shards but are listed by no part: their writer may have failed."""
    listed = frozenset[str]().union(*(part.names for part in parts))
    return sorted((name for name in names if name not in listed and _SHARD.fullmatch(name)), key=natural_order)


def _moved(shard: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    """The shard object with the names of its files put below `folder`."""
    if not folder:
        return shard
    moved = {
        key: {**shard[key], "basename": f"{folder}/{shard[key]['basename']}"}
        for key in _RAW + _ZIPPED
        if shard.get(key) is not None
    }
    return {**shard, **moved}


def _files(shard: Mapping[str, Any], keys: Iterable[str]) -> list[Mapping[str, Any]]:
    return [shard[key] for key in keys if shard.get(key) is not None]


def _wrong_files(
    files: Iterable[Mapping[str, Any]], size_of: Callable[[str], int | None]
) -> Iterator[Mapping[str, Any]]:
    return (file for file in files if size_of(file["basename"]) not in (file["bytes"], UNKNOWN_SIZE))


def _complaint(
    part: DatasetPart, file: Mapping[str, Any], size_of: Callable[[str], int | None], where: str
) -> ObjectMissingError | ShardDamagedError:
    name, found = file["basename"], size_of(file["basename"])
    if found is None:
        return ObjectMissingError(
            f"{part.shown} lists {name}, which is not in {where}. Check data availability! The parts of a merged "
            "dataset lie below the place of its index, each in the folder of its own"
        )
    return ShardDamagedError(
        f"{part.shown} says that {name} has {file['bytes']:,} bytes, but in {where} it has {found:,}: it was cut short "
        "or replaced; write that part again"
    )
