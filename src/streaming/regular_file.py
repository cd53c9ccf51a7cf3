"""Opens files that others may have put there: a pipe or a device in a file's place never blocks the reader."""

from __future__ import annotations

import errno
import os
import stat


class NotRegularError(OSError):
    """A folder, pipe, socket or device lies where a file should be."""


def open_regular(path: str) -> int:
    """Open a regular file for reading; the receiver closes the descriptor. Links are followed.

    Raises NotRegularError, and OSError as the system does.
    """
    # Without O_NONBLOCK the open of a pipe waits until somebody writes, which may be never.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device without a driver
            raise NotRegularError(errno.EINVAL, "not a regular file", path) from error
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise NotRegularError(errno.EINVAL, "not a regular file", path)


def read_regular(path: str, max_bytes: int | None = None) -> bytes:
    """Read a regular file, or its first `max_bytes`. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        return file.read() if max_bytes is None else file.read(max_bytes)
