"""Whether two paths lead to one folder: by what they lead to, never by their text.

Links, bind mounts, two mounts of one export and other spellings of one name make one folder look like two. Deleting in
the one deletes in the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


def is_same_folder(one: str, other: str) -> bool:
    """Whether both paths lead to one folder. Paths of which one does not exist are compared with their links resolved.

    >>> is_same_folder("/", "/usr/.."), is_same_folder("/no/such", "/no/such/"), is_same_folder("/", "/no/such")
    (True, True, False)
    """
    return KnownFolders([one]).has(other)


class KnownFolders:
    """Some folders, however they are reached."""

    def __init__(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        self._resolved = frozenset(map(os.path.realpath, paths))
        self._identities = frozenset(identity for path in paths for identity in _identities(path))

    def has(self, path: str) -> bool:
        """Whether this path leads to one of them."""
        if not self._resolved:
            return False
        return not self._identities.isdisjoint(_identities(path)) or os.path.realpath(path) in self._resolved


def _identities(path: str) -> tuple[tuple[int, ...], ...]:
    """What two paths to one folder have in common; nothing if there is no folder.

    Two mounts of one network export may have two device numbers. Their inode and both of its times are the same then.
    Times in whole seconds say nothing: the roots of many mounted buckets have inode 1 and the time 0.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ()
    by_device = status.st_ino, status.st_dev
    if status.st_mtime_ns % 10**9 == 0 or status.st_ctime_ns % 10**9 == 0:
        return (by_device,)
    return by_device, (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
