"""A file that no path leads to, for what a rank process shares with its loader workers alone."""

from __future__ import annotations

import os
import tempfile


def anonymous_file(title: str, n_bytes: int = 0) -> int:
    """A descriptor of `n_bytes` zero bytes. `title` is for debuggers.

    Workers get it by fork, or are handed it when they are started (`multiprocessing.reduction.DupFd`). The file goes
    with the last process that has it.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(title, os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, n_bytes)
    return fd
