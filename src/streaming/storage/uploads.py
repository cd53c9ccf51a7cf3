"""Uploads: the local file, hidden temporaries, replacement in steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from streaming.errors import StorageError, StoreUnreachableError
from streaming.placement import temporary_beside


def open_upload(path: str, shown: str) -> BinaryIO:
    """Open the local file for the upload to the object `shown`. Raises StorageError."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise StorageError(f"{path} cannot be read for the upload to {shown}: {error}") from error


def replace_in_steps(rename: Callable[[str, str], object], path: str, target: str) -> str:
    """Replace the file at `target` where a store does not rename onto one that exists: rename the old file first.

    Returns the hidden name of the old file, for the caller to delete. If the new file cannot take its place, the old
    one gets its name back, or the error says what it is called.
    """
    kept = temporary_beside(target)
    rename(target, kept)
    try:
        rename(path, target)
    except Exception as error:
        try:
            rename(kept, target)
        except Exception:
            kind = type(error) if isinstance(error, StorageError) else StoreUnreachableError  # worth another try
            raise kind(f"{error}; the file that was there is kept as {kept!r}") from error
        raise
    return kept


class CountedFile:
    """A file that reports how far it has been read."""

    def __init__(self, file: BinaryIO, moved: Callable[[int], None] | None) -> None:
        self._file, self._moved = file, moved

    def read(self, n_bytes: int = -1) -> bytes:
        """Like `file.read`, and reports progress."""
        chunk = self._file.read(n_bytes)
        if self._moved is not None:
            self._moved(self._file.tell())
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        """Like `file.seek`."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Like `file.tell`."""
        return self._file.tell()
