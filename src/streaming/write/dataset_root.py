"""The root of a merged dataset: reads what lies below it, and places the merged index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cached_property
from typing import Any, Final, Self

from streaming.errors import ObjectMissingError, OptionError, PartMissingError, StorageError, WriteError
from streaming.fetch.client import FetchClient
from streaming.formats.names import INDEX_NAME
from streaming.placement import write_file
from streaming.storage.options import checked_options
from streaming.storage.url import Folder, join_remote, parse_remote
from streaming.write.dataset_parts import UNKNOWN_SIZE, relative_folder
from streaming.write.output_location import Out, parse_out
from streaming.write.temporary_folder import TemporaryFolder
from streaming.write.uploader import Uploader, open_uploader

_N_AT_ONCE: Final = 16  # indexes that are read at the same time
_ATTEMPTS: Final = 2
_DEADLINE_S: Final = 120.0


class DatasetRoot:
    """A folder, a place in a store, or a folder that is a copy of a place in a store. Owns connections.

    `home` is where the shards are: the place in the store if there is one. Use it as a context manager; entering it
    checks that the index can be placed. The fetcher talks to stores, so this process may fork.
    """

    def __init__(
        self,
        out: Out,
        *,
        keep_local: bool,
        timeout_s: object,
        storage_options: Mapping[str, Any] | None,
        sources: Iterable[str] = (),
    ) -> None:
        """`sources` are further places that will be read. Raises OptionError."""
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < 1e9:
            raise OptionError(f"download_timeout must be a number of seconds above 0, got {timeout_s!r}")
        target = parse_out(out)
        self._local = None if target.local is None else os.path.abspath(target.local)
        self._target = target.remote
        self._remote = None if target.remote is None else str(target.remote)
        self.home = str(self._local) if self._remote is None else self._remote
        self._keeps_local = self._local is not None and (keep_local or self._remote is None)
        self._timeout_s = float(timeout_s)
        self._storage_options = storage_options
        if storage_options and all(map(is_folder, [self.home, *sources])):
            raise OptionError("storage_options say how a store is asked, and there is none here")
        self._blocks = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as blocks:
            deadline_s = max(_DEADLINE_S, self._timeout_s + 30.0)
            self._client = blocks.enter_context(FetchClient(None, [], deadline_s=deadline_s))
            self._uploader: Uploader | None = None
            if self._target is not None:
                options = None if isinstance(self._target, Folder) else self._storage_options
                uploader = open_uploader(self._target, retry=_ATTEMPTS, storage_options=options)
                self._uploader = blocks.enter_context(closing(uploader))
                self._uploader.check()
            self._blocks = blocks.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks.close()

    @cached_property
    def names(self) -> list[str]:
        """All files at home. Raises StoreCannotError for a store that cannot list, and the errors of the store."""
        return self._client.list_objects(parse_remote(self.home), options=self._options(self.home))

    @property
    def names_in_copy(self) -> list[str]:
        """All files in the local copy of home; empty if there is no copy."""
        return [] if self._local in (None, self.home) else self._client.list_objects(parse_remote(str(self._local)))

    def folder_of(self, file: str) -> str | None:
        """The folder, relative to this root, of a file that `parse_remote` has written; None if it lies elsewhere."""
        found = (relative_folder(file, place) for place in (self._local, self._remote) if place is not None)
        return next((folder for folder in found if folder is not None), None)

    def read_all(self, files: Sequence[str]) -> list[bytes]:
        """The contents of these files, which may lie anywhere. Raises PartMissingError, WriteError."""
        with ThreadPoolExecutor(_N_AT_ONCE, thread_name_prefix="streaming-merge") as pool:
            return list(pool.map(self._read_part, files))

    def size_of(self) -> Callable[[str], int | None]:
        """A function from the name of a file at home to its bytes: None if it is missing, UNKNOWN_SIZE in a store."""
        if is_folder(self.home):
            return self._size_on_disk
        there = frozenset(self.names)
        return lambda name: UNKNOWN_SIZE if name in there else None

    def standing(self) -> list[tuple[str, bytes]]:
        """The indexes that `place` will replace, each after its name for messages. Raises the errors of the store."""
        places = [self.home] if self._local in (None, self.home) or not self._keeps_local else [self.home, self._local]
        files = [join_remote(str(place), INDEX_NAME) for place in places]
        found = []
        for file in files:
            try:
                found.append((shown(file), self._read(file)))
            except ObjectMissingError:
                continue
        return found

    def place(self, index: bytes) -> None:
        """Place this index in the root, whole, and replace any other. Raises OSError, and the errors of the store."""
        if self._uploader is not None:
            temporary = TemporaryFolder()
            try:
                path = os.path.join(temporary.path, INDEX_NAME)
                write_file(path, index)
                self._uploader.put(path, INDEX_NAME)
            finally:
                temporary.remove()
        if self._local is not None and self._keeps_local:
            os.makedirs(self._local, exist_ok=True)
            write_file(os.path.join(self._local, INDEX_NAME), index)

    def _read_part(self, file: str) -> bytes:
        try:
            return self._read(file)
        except ObjectMissingError as error:
            raise PartMissingError(f"Failed to download index.json: {error}. Check data availability!") from error
        except StorageError as error:
            raise WriteError(f"Failed to download index.json: {shown(file)}: {error}; nothing is merged") from error

    def _read(self, file: str) -> bytes:
        folder, _, name = file.rpartition("/")
        return self._client.read_object(
            parse_remote(folder or "/"),
            name,
            attempts=_ATTEMPTS,
            timeout_s=self._timeout_s,
            options=self._options(folder or "/"),
        )

    def _options(self, place: str) -> str:
        return json.dumps({} if is_folder(place) else checked_options(parse_remote(place), self._storage_options))

    def _size_on_disk(self, name: str) -> int | None:
        try:
            return os.stat(os.path.join(self.home, name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None


def is_folder(place: str) -> bool:
    """Whether a place lies on this machine's file systems."""
    return isinstance(parse_remote(place), Folder)


def shown(place: str) -> str:
    """A place for messages, without passwords."""
    return parse_remote(place).shown
