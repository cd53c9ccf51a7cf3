"""What a process that may fork at any time needs: locks that its children can use, and to know what it is itself."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any, TypeVar

T = TypeVar("T")


class ForkSafeLock:
    """Keeps threads apart, and is free in a forked child: the thread that held it is not there to release it.

    So what it guards must be consistent at every step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_all: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def members(weak: weakref.WeakSet[T]) -> list[T]:
    """List what is in the set, although other threads may add to it meanwhile."""
    while True:
        try:
            return list(weak)
        except RuntimeError:  # it changed its size under us
            continue


def is_loader_worker() -> bool:
    """Whether this process is a worker of a PyTorch loader. Imports nothing."""
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _renew() -> None:
    for lock in members(_all):
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)
