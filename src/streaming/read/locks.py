"""A lock between threads that a forked child can still use."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """Keeps threads apart. In a forked child it is free, whoever held it: that thread is not there to release it.

    So what it guards must be left consistent at every step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_all: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in list(_all):
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)
