"""A folder as a store: plain `open` and `pread`, safe in any process, forked or not."""

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
    TransferDamagedError,
)
from streaming.placement import is_temporary, placed_file
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.uploads import open_upload

_CHUNK_BYTES: Final = 1 << 20


class FolderStore:
    """The files below a folder. `put` makes folders as needed and shows a file only when it is whole."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        with self._told(name):
            file = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self._told(name):
                facts = _facts(name, os.fstat(file))
            if version is not None and version != facts.version:
                raise TransferDamagedError(f"{self._path(name)} changed while it was read")
        except BaseException:
            os.close(file)
            raise
        return Content(facts, offset, _FileChunks(self._path(name), file, offset, facts.n_bytes))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        with self._told(name):
            file = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                facts = _facts(name, os.fstat(file))
                data = os.pread(file, end - begin, begin)
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
        with open_upload(path, target) as source, self._told(name):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with placed_file(target) as copy:
                n_bytes = 0
                while chunk := source.read(_CHUNK_BYTES):
                    copy.write(chunk)
                    n_bytes += len(chunk)
                    if moved is not None:
                        moved(n_bytes)

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store. Hidden temporaries of writers are no objects; links to folders are not followed."""
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
        with self._told(name):
            return _facts(name, os.stat(self._path(name)))

    def delete(self, name: str) -> None:
        """See Store."""
        with self._told(name), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def check_writable(self) -> None:
        """Make the folder if it is missing; StorageError if files cannot be made in it."""
        with self._told(""):
            os.makedirs(self._folder, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._folder)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _told(self, name: str) -> contextlib.AbstractContextManager[None]:
        return _in_our_words(self._path(name) if name else self._folder)


class _FileChunks(Iterator[bytes]):
    """A file's bytes in order, as long as it was when opened. Owns the descriptor; closed at the end or if dropped."""

    def __init__(self, path: str, file: int, offset: int, n_bytes: int) -> None:
        self._path, self._file, self._offset, self._n_bytes = path, file, offset, n_bytes
        self._close = weakref.finalize(self, os.close, file)

    def __next__(self) -> bytes:
        left = self._n_bytes - self._offset
        if left <= 0:
            self._close()
            raise StopIteration
        with _in_our_words(self._path):
            chunk = os.pread(self._file, min(left, _CHUNK_BYTES), self._offset)
        if not chunk:
            raise TransferDamagedError(f"{self._path} was cut to {self._offset} bytes while it was read")
        self._offset += len(chunk)
        return chunk


@contextlib.contextmanager
def _in_our_words(path: str) -> Iterator[None]:
    """The system's errors as kinds that a caller can act on."""
    try:
        yield
    except StorageError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ObjectMissingError(
            f"{path} does not exist; check the path, and that its file system is mounted"
        ) from error
    except PermissionError as error:
        raise ObjectForbiddenError(f"{path}: permission denied; check its owner and mode") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoomError(f"{path}: no room left on its file system; make room or take another folder") from error
        raise StorageError(f"{path}: {error.strerror or error}") from error


def _raise_unless_gone(error: OSError) -> None:
    """A folder that cannot be read is no empty one; one that is not there (any more) is."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _in_our_words(error.filename):
        raise error


def _facts(name: str, status: os.stat_result) -> ObjectFacts:
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a file", name)
    return ObjectFacts(name, status.st_size, f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}")
