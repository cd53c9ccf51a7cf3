"""A file as memory, without holding a descriptor.

Python's `mmap` keeps a duplicate of the descriptor until 3.13, and a reader maps some hundred shards at a time where
the usual limit is 1,024 descriptors. So before 3.13 the C library is asked directly.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache
from typing import Final

_FAILED: Final = ctypes.c_void_p(-1).value

# File systems whose files another machine may cut or replace while we have them mapped.
_NETWORK_TYPES: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2"}
    | {"orangefs", "pvfs2", "panfs", "wekafs", "virtiofs"}
)


def map_file(fd: int, n_bytes: int) -> memoryview:
    """The first `n_bytes` of an open file, read-only. `fd` may be closed at once.

    The memory is given back when the view and everything that was cut from it are gone. Only for files that nobody
    shortens: touching a page behind the end of a file kills the process. Raises OSError.
    """
    if n_bytes == 0:
        return memoryview(b"")
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(fd, n_bytes, access=mmap.ACCESS_READ, trackfd=False))
    return _map_by_libc(fd, n_bytes)


def _map_by_libc(fd: int, n_bytes: int) -> memoryview:
    libc = _libc()
    address = libc.mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    block = _block_type(n_bytes.bit_length()).from_address(address)
    # Every view keeps `block` alive, so the pages go exactly when the last view has gone. At exit the kernel does it.
    weakref.finalize(block, libc.munmap, address, n_bytes).atexit = False
    return memoryview(block).cast("B")[:n_bytes].toreadonly()


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


@cache
def _block_type(n_bits: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """A type at least as long as any size of so many bits: making one for every size costs more than the map itself.

    Nothing beyond the map is ever touched: its view is cut to the map's size at once.
    """
    return ctypes.c_ubyte * (1 << n_bits)


def is_on_network(folder: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether a folder (or where it will be made) is on a network or user-space file system, as far as one can tell."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return False  # no Linux: nothing to ask; files that we fetched are then taken to be local
    folder = os.path.realpath(folder)
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].replace("\\040", " ")
        covers = folder == point or folder.startswith(point.rstrip("/") + "/")
        if covers and len(point) >= len(best):  # the last of equals lies on top
            best, kind = point, after.split(" ")[0]
    return kind in _NETWORK_TYPES or kind.startswith("fuse")
