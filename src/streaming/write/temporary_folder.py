"""A temporary folder that the next writer deletes if its own writer was killed.

The writer holds a lock on the folder, which the kernel frees when the writer is gone, however it ended. A folder that
can be locked is rubbish, and the next writer of this user deletes it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from typing import Final

from streaming.placement import lock, try_lock

_PREFIX: Final = "streaming-write-"


class TemporaryFolder:
    """A new folder in the system's temporary directory, locked until it is removed. Owns a descriptor."""

    def __init__(self) -> None:
        _sweep(tempfile.gettempdir())
        while not self._create():  # another writer swept it between the creation and the lock
            pass

    def _create(self) -> bool:
        self.path = os.path.abspath(tempfile.mkdtemp(prefix=_PREFIX))  # relative before Python 3.12, if TMPDIR is
        try:
            self._fd = _open(self.path)
        except FileNotFoundError:
            return False
        lock(self._fd)
        if os.path.isdir(self.path):
            return True
        os.close(self._fd)
        return False

    def remove(self) -> None:
        """Delete the folder and all that is in it. Doing it twice is harmless."""
        if self._fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._fd)
            self._fd = -1


def _sweep(root: str) -> None:
    """Delete this user's folders of writers that are gone."""
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _remove_if_abandoned(path: str) -> None:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    fd = _open(path)
    try:
        if try_lock(fd):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
