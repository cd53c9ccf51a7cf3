"""What a rank process shares with its loader workers alone, in files that no path leads to.

A dataset may be made before the ranks are started from it, by fork, spawn or forkserver. A loader worker goes on with
what it inherits; any other process is a rank process, and its share must be its own.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress

from streaming.errors import ClosedError
from streaming.fork_safety import is_loader_worker, members


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


class RankOwned(ABC):
    """What belongs to one rank process and its loader workers.

    A rank process that has inherited it from another process makes it its own before the first use, and at the latest
    before it starts processes itself, which may be its workers.
    """

    _owner: int
    """The rank process to which it belongs. After a fork or in a spawned process, that of the parent."""

    def _belongs_to_this_process(self) -> None:
        """To be called wherever it is created."""
        self._owner = os.getpid()
        _all.add(self)

    def _inherited_from(self, process: int) -> None:
        """To be called wherever it is unpickled in a process that another one has started."""
        self._owner = process
        _all.add(self)

    def _own(self) -> None:
        """Make it this process's own, if this is a rank process and it is not yet. Requires its lock."""
        if self._owner != os.getpid() and not is_loader_worker():
            self._separate()
            self._owner = os.getpid()

    @abstractmethod
    def own(self) -> None:
        """Do the same, with its lock. Raises ClosedError."""

    @abstractmethod
    def _separate(self) -> None:
        """Go on with a file of this process, from where the other one stood when this process was started."""


_all: weakref.WeakSet[RankOwned] = weakref.WeakSet()


def _own_all() -> None:
    for each in members(_all):
        with suppress(OSError, ClosedError):
            each.own()


os.register_at_fork(before=_own_all)
