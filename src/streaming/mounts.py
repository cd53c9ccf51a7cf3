"""What kind of file system a folder is on."""

from __future__ import annotations

import os
from typing import Final

_NETWORK_TYPES: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2"}
    | {"orangefs", "pvfs2", "panfs", "wekafs", "virtiofs"}
)
"""File systems whose files another machine may cut or replace while they are mapped here."""


def is_on_network(folder: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether a folder, which need not exist yet, is on a network or user-space file system, as far as can be seen."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return False  # not Linux: nothing to ask, so fetched files are taken to be local
    folder = os.path.realpath(folder)
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].replace("\\040", " ")
        covers = folder == point or folder.startswith(point.rstrip("/") + "/")
        if covers and len(point) >= len(best):  # of equal mount points the last lies on top
            best, kind = point, after.split(" ")[0]
    return kind in _NETWORK_TYPES or kind.startswith("fuse")
