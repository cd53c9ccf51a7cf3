"""Bytes that are kept aside until it is known how many they are."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Final

_IN_MEMORY_BYTES: Final = 1 << 24  # more goes to a temporary file
_CHUNK_BYTES: Final = 1 << 20


class Spool(Iterator[bytes]):
    """The bytes of `chunks`, all taken at once, given once. Owns a file, which is closed at the end or if dropped."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  closed by the next line
        self._close = weakref.finalize(self, self._file.close)
        for chunk in chunks:
            self._file.write(chunk)
        self.n_bytes = self._file.tell()
        self._file.seek(0)

    def skip(self, n_bytes: int) -> None:
        """Begin behind so many."""
        self._file.seek(n_bytes)

    def __next__(self) -> bytes:
        if self._close.alive and (chunk := self._file.read(_CHUNK_BYTES)):
            return chunk
        self._close()
        raise StopIteration
