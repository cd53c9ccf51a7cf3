"""A folder as a store, by plain `open` and `pread`: safe in any process, forked or not."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from streaming.errors import (
    NoRoomError,
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.file_reads import read_at
from streaming.placement import is_temporary, placed_file
from streaming.regular_file import NotRegularError, open_regular
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.translation import translating_errors
from streaming.storage.uploads import open_upload

_CHUNK_BYTES: Final = 1 << 20
_TRANSIENT: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""What network file systems answer while their server is away or is failing over."""


class FolderStore:
    """The files below a folder. `put` makes missing folders; a file appears only once it is whole."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        with self._translating_errors(name):
            file = open_regular(self._path(name))
        try:
            with self._translating_errors(name):
                facts = _facts(name, os.fstat(file))
            if version is not None and version != facts.version:
                raise TransferDamagedError(f"{self._path(name)} changed while it was read")
        except BaseException:
            os.close(file)
            raise
        return Content(facts, offset, _FileChunks(self._path(name), file, offset, facts.n_bytes))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        with self._translating_errors(name):
            file = open_regular(self._path(name))
            try:
                facts = _facts(name, os.fstat(file))
                data = read_at(file, end - begin, begin)
            finally:
                os.close(file)
        if version is not None and version != facts.version:
            raise TransferDamagedError(f"{self._path(name)} changed while it was read")
        if len(data) != end - begin:
            raise TransferDamagedError(
                f"{self._path(name)} has {facts.n_bytes} bytes; bytes up to {end} were asked for: was it cut?"
            )
        return Part(facts, data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        target = self._path(name)
        with open_upload(path, target) as source, self._translating_errors(name):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with placed_file(target) as copy:
                n_bytes = 0
                while chunk := source.read(_CHUNK_BYTES):
                    copy.write(chunk)
                    n_bytes += len(chunk)
                    if moved is not None:
                        moved(n_bytes)

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store. Hidden temporaries of writers are not objects; links to folders are not followed."""
        top = self._path(prefix) if prefix else self._folder
        for folder, _, names in os.walk(top, onerror=_raise_unless_gone):
            for file_name in names:
                if is_temporary(file_name):
                    continue
                path = os.path.join(folder, file_name)
                with contextlib.suppress(FileNotFoundError):
                    yield _facts(os.path.relpath(path, self._folder), os.stat(path))

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        with self._translating_errors(name):
            return _facts(name, os.stat(self._path(name)))

    def delete(self, name: str) -> None:
        """See Store."""
        with self._translating_errors(name), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def check_writable(self) -> None:
        """Make the folder if it is missing. Raises StorageError if files cannot be made in it."""
        with self._translating_errors(""):
            os.makedirs(self._folder, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._folder)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _translating_errors(self, name: str) -> contextlib.AbstractContextManager[None]:
        return _translating_errors(self._path(name) if name else self._folder)


class _FileChunks(Iterator[bytes]):
    """The bytes of a file, up to its size when opened. Owns the descriptor; closes it at the end or if dropped."""

    def __init__(self, path: str, file: int, offset: int, n_bytes: int) -> None:
        self._path, self._file, self._offset, self._n_bytes = path, file, offset, n_bytes
        self._close = weakref.finalize(self, os.close, file)

    def __next__(self) -> bytes:
        left = self._n_bytes - self._offset
        if left <= 0:
            self._close()
            raise StopIteration
        with _translating_errors(self._path):
            chunk = os.pread(self._file, min(left, _CHUNK_BYTES), self._offset)
        if not chunk:
            raise TransferDamagedError(f"{self._path} was cut to {self._offset} bytes while it was read")
        self._offset += len(chunk)
        return chunk


def _translating_errors(path: str) -> contextlib.AbstractContextManager[None]:
    return translating_errors(lambda error: _translated(path, error))


def _translated(path: str, error: Exception) -> StorageError | None:
    """Say what an error of the system means for a file or folder."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ObjectMissingError(
            f"{path} does not exist (No such file or directory); check the path, and that its file system is mounted"
        )
    if isinstance(error, NotRegularError):
        return ObjectMissingError(f"{path} is not a regular file")
    if isinstance(error, PermissionError):
        return ObjectForbiddenError(f"{path}: permission denied; check its owner and mode")
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoRoomError(f"{path}: no room left on its file system; make room or take another folder")
        if error.errno in _TRANSIENT:
            words = error.strerror or error
            return StoreUnreachableError(f"{path}: {words}; is its file system mounted and reachable?")
        return StorageError(f"{path}: {error.strerror or error}")
    return None


def _raise_unless_gone(error: OSError) -> None:
    """Raise for a folder that cannot be read; one that does not exist (any more) counts as empty."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        with _translating_errors(error.filename):
            raise error


def _facts(name: str, status: os.stat_result) -> ObjectFacts:
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a file", name)
    version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    return ObjectFacts(name, status.st_size, version, status.st_mtime)
