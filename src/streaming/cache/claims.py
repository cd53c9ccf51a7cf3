"""Claims on files that are to be fetched, where several processes of a machine fetch into one cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator

from streaming.cache.files import PRIVATE_FOLDER


@contextlib.contextmanager
def claimed(root: str, path: str) -> Iterator[None]:
    """A block that one process at a time is in for each path; the kernel ends the claim of a dead one.

    Where no lock can be made the block is entered all the same: two that fetch one file are only not thrifty.
    """
    file = None
    try:
        folder = os.path.join(root, PRIVATE_FOLDER, f"claims-{os.geteuid()}")
        lock = os.path.join(folder, hashlib.blake2b(os.fsencode(path), digest_size=12).hexdigest())
        with contextlib.suppress(OSError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                os.unlink(lock)  # who waits for it then holds a lock without a name, and looks whether the file came
            os.close(file)
