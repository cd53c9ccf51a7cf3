"""`merge_index`: makes one dataset of those that several processes wrote below one root.

`dataset_parts` decides what the merged index says; `dataset_root` reads and writes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

from streaming.errors import IndexMissingError, ObjectMissingError, OptionError
from streaming.formats.names import INDEX_NAME
from streaming.storage.url import Bucket, join_remote, looks_like_url, parse_remote
from streaming.write.dataset_parts import (
    DatasetPart,
    check_files,
    check_nothing_is_hidden,
    merged_index,
    natural_order,
    read_part,
    unlisted_shards,
    without_summaries,
)
from streaming.write.dataset_root import DatasetRoot, is_folder, shown
from streaming.write.output_location import Out

Path: TypeAlias = str | os.PathLike[str]
IndexFile: TypeAlias = Path | tuple[Path | None, Path | None]
SomeIndexFile = TypeVar("SomeIndexFile", bound=IndexFile)  # lists are invariant: list[str] is no list[IndexFile]


@overload
def merge_index(
    index_file_urls: list[SomeIndexFile],
    out: Out,
    keep_local: bool = ...,
    download_timeout: float = ...,
    *,
    storage_options: Mapping[str, Any] | None = ...,
) -> None: ...


@overload
def merge_index(
    out: Out,
    keep_local: bool = ...,
    download_timeout: float = ...,
    *,
    storage_options: Mapping[str, Any] | None = ...,
) -> None: ...


def merge_index(*args: Any, **kwargs: Any) -> None:
    """Write one index for the datasets that lie below `out`, each with an `index.json` of its own; no shard is moved.

    `merge_index(out)` merges every `index.json` below `out`, at any depth (links to folders are not followed), in
    natural order: part2 before part10. An index that only repeats what indexes below it list was merged before, and is
    skipped; the root's own is replaced. So merging again gives the same bytes, or takes in what has come since. Shards
    that no index lists (their writer failed) are left out with a warning.

    `merge_index([index, …], out)` merges these indexes, in this order. Each is a path, a URL, or a pair (path, URL); of
    a pair the path is read if it exists. An index that does not lie below `out` is merged as if its last folder did.

    `out` is a folder, a URL or a pair (folder, URL or folder). Of a pair the second is where the shards are: the index
    is uploaded there, and with `keep_local` placed in the first too. Nothing is ever deleted. `download_timeout` is the
    time in seconds that a store may take for an index; `storage_options` configure its client (see docs/stores.md). The
    merged index is written last, whole, after every file that it lists was found in its place.

    Raises PartMissingError, IndexFormatError, ObjectMissingError or ShardDamagedError (a shard is missing or cut),
    OptionError (parts overlap; an index in the root whose own shards would be hidden), IndexMissingError (nothing to
    merge), StoreCannotError (a store that cannot list), WriteError, and the errors of a store.

    >>> import os, tempfile
    >>> from streaming import LocalDataset, MDSWriter
    >>> root = tempfile.mkdtemp()
    >>> for part in range(2):
    ...     with MDSWriter(columns={"id": "int"}, out=os.path.join(root, str(part))) as writer:
    ...         writer.write({"id": part})
    >>> merge_index(root)
    >>> [sample["id"] for sample in LocalDataset(root)]
    [0, 1]
    """
    if args and isinstance(args[0], list):
        _merge_listed(*args, **kwargs)
    elif args and isinstance(args[0], str | os.PathLike | tuple):
        _merge_below(*args, **kwargs)
    else:
        raise OptionError(
            "merge_index takes first, without its name, a list of index files or the place `out`, got "
            + (repr(args[0]) if args else "none")
        )


def _merge_listed(
    index_file_urls: list[IndexFile],
    out: Out,
    keep_local: bool = True,
    download_timeout: float = 60,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    files = list(dict.fromkeys(_named(number, item) for number, item in enumerate(index_file_urls)))
    if not files:
        raise OptionError("the list of indexes to merge is empty; leave merge_index out where nothing was written")
    with DatasetRoot(
        out,
        keep_local=keep_local,
        timeout_s=download_timeout,
        storage_options=storage_options,
        sources=[file.remote for file in files if file.remote],
    ) as root:
        sources = [file.source() for file in files]
        contents = root.read_all(sources)
        parts = [
            read_part(data, folder=_folder_of(file, root), shown=shown(source))
            for file, source, data in zip(files, sources, contents, strict=True)
        ]
        _merge(parts, root)


def _merge_below(
    out: Out,
    keep_local: bool = True,
    download_timeout: float = 60,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    with DatasetRoot(out, keep_local=keep_local, timeout_s=download_timeout, storage_options=storage_options) as root:
        names = sorted(filter(_is_below, root.names), key=natural_order)
        if left := set(filter(_is_below, root.names_in_copy)).difference(names):
            raise ObjectMissingError(
                f"{min(left)} lies in the local folder, but not in {shown(root.home)}. Check data availability! "
                "Upload that part, or delete it"
            )
        if not names:
            raise IndexMissingError(
                f"there is nothing to merge: no folder below {shown(root.home)} has an {INDEX_NAME}; check the path, "
                "and that the writers have finished"
            )
        files = [join_remote(root.home, name) for name in names]
        parts = [
            read_part(data, folder=os.path.dirname(name), shown=shown(file))
            for name, file, data in zip(names, files, root.read_all(files), strict=True)
        ]
        _merge(without_summaries(parts), root, found=root.names)


def _merge(parts: Sequence[DatasetPart], root: DatasetRoot, *, found: Sequence[str] = ()) -> None:
    """Check the merged index of these parts and place it; warn of shards among the files `found` that no part lists."""
    home = shown(root.home)
    index = merged_index(parts, shown=f"the merged index of {home}")
    check_files(parts, root.size_of(), where=home, raw_will_do=is_folder(root.home))
    for file, standing in root.standing():
        check_nothing_is_hidden(standing, parts, shown=file)
    if unlisted := unlisted_shards(found, parts):
        warnings.warn(
            f"{len(unlisted)} files below {home} look like shards but are listed by no {INDEX_NAME}, so they are left "
            f"out: {unlisted[0]} is the first; has its writer finished?",
            stacklevel=4,
        )
    root.place(index)


def _is_below(name: str) -> bool:
    return name.endswith(f"/{INDEX_NAME}")


# --- indexes that the user names


@dataclass(frozen=True, slots=True)
class _NamedIndex:
    """The place of an index that the user names: in a folder, in a store, or in both. As `parse_remote` writes them."""

    local: str | None
    remote: str | None

    @property
    def places(self) -> list[str]:
        """The places, local before remote."""
        return [place for place in (self.local, self.remote) if place is not None]

    def source(self) -> str:
        """The place to read."""
        is_here = self.local is not None and os.path.exists(self.local)
        return self.places[0 if is_here else -1]


def _named(number: int, item: object) -> _NamedIndex:
    """Parse item `number` of the list. Raises OptionError."""
    if not isinstance(item, tuple | list):
        place = _place(item)
        file = _NamedIndex(place, None) if place is None or is_folder(place) else _NamedIndex(None, place)
    elif len(item) == 2:
        file = _NamedIndex(_place(item[0]), _place(item[1]))
    else:
        file = _NamedIndex(None, None)
    if not file.places or (file.local is not None and not is_folder(file.local)):
        raise OptionError(f"an index to merge is a path, a URL or a pair (path, URL); item {number} of the list is not")
    return file


def _place(item: object) -> str | None:
    text = os.fspath(item) if isinstance(item, str | os.PathLike) else ""
    text = text.rstrip("/") if isinstance(text, str) else ""
    if not text:
        return None
    location = parse_remote(text if looks_like_url(text) else os.path.expanduser(text))
    if isinstance(location, Bucket) and not location.prefix:
        raise OptionError(f"an index to merge is a file, got {location.shown}")
    return str(location)


def _folder_of(file: _NamedIndex, root: DatasetRoot) -> str:
    """The folder, relative to the root, of the shards of a named index. Raises OptionError."""
    folders = {folder for place in file.places if (folder := root.folder_of(place)) is not None}
    if len(folders) > 1:
        raise OptionError(
            f"{' and '.join(map(shown, file.places))} are given as one index, but lie in different folders of "
            f"{shown(root.home)}: {' and '.join(sorted(folders))}"
        )
    # The predecessor always takes the last folder's name. That the shards lie there is checked anyway.
    return folders.pop() if folders else os.path.basename(os.path.dirname(file.source()))
