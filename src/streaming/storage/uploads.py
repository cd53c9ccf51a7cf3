"""A file on its way to a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from streaming.errors import StorageError
from streaming.placement import is_temporary, temporary_beside

__all__ = ["CountedFile", "is_temporary", "open_upload", "temporary_beside"]


def open_upload(path: str, shown: str) -> BinaryIO:
    """The local file that is to become the object `shown`. Raises StorageError."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise StorageError(f"{path} cannot be read for the upload to {shown}: {error}") from error


class CountedFile:
    """A file whose reader tells how far it is."""

    def __init__(self, file: BinaryIO, moved: Callable[[int], None] | None) -> None:
        self._file, self._moved = file, moved

    def read(self, n_bytes: int = -1) -> bytes:
        """As of any file; tells."""
        chunk = self._file.read(n_bytes)
        if self._moved is not None:
            self._moved(self._file.tell())
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of any file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As of any file."""
        return self._file.tell()
