"""Places files: each is written as a temporary beside its final place, then renamed, so it appears whole or not at all.

1. A temporary has a hidden, unique name that `is_temporary` recognises. No other file has such a name.
2. Its writer holds a lock on it. The kernel frees the lock of a dead writer, so a temporary that can be locked is
   abandoned and may be deleted, and one that cannot is being written.
3. Losing a race is success: of two files placed under one name the last one stays, and both are whole.

Where a file system has no locks, no temporary can be locked, so none is deleted as abandoned.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)
_SHOWN_CHARACTERS: Final = 50  # of the final name: in UTF-8 at most 200 of the 255 bytes of a name


def is_temporary(path: str) -> bool:
    """Whether the last part of `path` is the name of a temporary, of this process or of another.

    >>> is_temporary("train/.shard.00000.mds.0123456789abcdef.tmp"), is_temporary("train/.mine.tmp")
    (True, False)
    """
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


def temporary_beside(path: str) -> str:
    """A new name for a temporary in the folder of `path`: a path of this machine, or a name in a store."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name[:_SHOWN_CHARACTERS]}.{os.urandom(8).hex()}.tmp"


class UnplacedFile:
    """A new, locked temporary for the file `final`. Owns the descriptor `file`, open for reading and writing.

    The umask applies to `mode`. Close it in any case: closing deletes a file that was not placed. Raises OSError.
    """

    def __init__(self, final: str, *, mode: int = 0o666) -> None:
        self.final = final
        while not self._create(mode):  # a sweeper came between the creation and the lock
            pass

    def _create(self, mode: int) -> bool:
        self.path = temporary_beside(self.final)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self.file = os.open(self.path, flags, mode)
        lock(self.file)
        if os.fstat(self.file).st_nlink:
            return True
        os.close(self.file)
        return False

    def place(self) -> None:
        """Give the file its final name, in place of any other file of that name. Raises OSError."""
        os.rename(self.path, self.final)

    def place_if_absent(self) -> bool:
        """Give the file its final name unless that is taken; returns whether it did. Raises OSError.

        On a file system without hard links it replaces the other file, like `place`.
        """
        try:
            os.link(self.path, self.final)
        except FileExistsError:
            return False
        except OSError:
            self.place()
        return True

    def close(self) -> None:
        """Give up the lock, and delete the temporary if it is still there."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self.file)


@contextlib.contextmanager
def placed_file(path: str) -> Iterator[BinaryIO]:
    """A new file to write. It appears at `path` when the block ends, and is deleted if the block raises an error."""
    with contextlib.closing(UnplacedFile(path)) as unplaced:
        # A network file system may report a failed write at closing. Closing a duplicate keeps the lock.
        with os.fdopen(os.dup(unplaced.file), "wb") as file:
            yield file
        unplaced.place()


def write_file(path: str, data: bytes) -> None:
    """Write a file that appears whole. Raises OSError."""
    with placed_file(path) as file:
        file.write(data)


def delete_if_abandoned(path: str) -> bool:
    """Delete a temporary unless it is being written; returns whether it was deleted."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not try_lock(file):
            return False
        os.unlink(path)
    except OSError:  # another sweeper was faster, or it is not ours to delete
        return False
    finally:
        os.close(file)
    return True


def lock(file: int) -> None:
    """Lock an open file or folder: it is in use until it is closed. Waits while another holder has it locked."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: int) -> bool:
    """Lock an open file or folder unless another holder has it locked. Returns False also where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
