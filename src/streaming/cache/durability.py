"""Which files of a cache may be lost when the machine dies, and which are known to be on the disk.

A file system writes the bytes of a file some seconds after its name. So after a crash a file may have its name and its
size, and zeros for bytes. To force each file to the disk would cost more than to fetch it. Instead a note with each
cache folder says in which run of the machine files were placed, and until which moment all of them were on the disk.
After the machine has started again, copies that are younger are checked, or fetched again.

The note is an extended attribute of the folder. It is set before the first file gets its name, and local file systems
write such changes in their order: a crash never leaves the file without the note. On network file systems nothing is
noted: their servers keep the bytes, and other machines place files there, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
import time
from typing import Final

from streaming.cache.files import boot_id
from streaming.mounts import is_on_network

NOTE: Final = "user.streaming.synced"  # the extended attribute of a cache folder
_SYNC_S: Final = 30.0
"""Seconds between two notes of a folder into which files are placed."""


def lost_since_s(folder: str) -> float | None:
    """Since when files that were placed in a folder may have lost their bytes; None if none may.

    The moment is one of the file system's clock, in seconds since 1970.
    """
    try:
        text = os.getxattr(folder, NOTE)
    except (OSError, AttributeError):
        return None  # no file was placed there by us, or the file system or the system has no such attributes
    try:
        note = json.loads(text)
        return None if note["boot"] == boot_id() else float(note["synced_s"])
    except (ValueError, KeyError, TypeError):
        return 0.0  # not a note of ours: it vouches for nothing


def note_synced(folder: str, synced_s: float) -> None:
    """Note that all files of a folder up to this moment are on the disk. A folder that cannot keep notes is left."""
    with contextlib.suppress(OSError, AttributeError):
        os.setxattr(folder, NOTE, json.dumps({"boot": boot_id(), "synced_s": synced_s}).encode())


class SyncKeeper:
    """Keeps the notes of the folders into which files are placed. Owns a thread. Thread-safe."""

    def __init__(self, *, every_s: float = _SYNC_S) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._noted: dict[str, bool] = {}  # folder → whether it is on this machine
        self._dirty: set[str] = set()
        self._is_running = False

    def placing(self, folder: str) -> None:
        """A file of this folder is about to be written, or to get its name. The note is older than any of its bytes."""
        with self._lock:
            is_new = folder not in self._noted
            if is_new:
                self._noted[folder] = not is_on_network(folder)
            if not self._noted[folder]:
                return
            self._dirty.add(folder)
            starts = not self._is_running
            self._is_running = True
            if is_new and lost_since_s(folder) is None:  # else it still says what a crash may have taken
                note_synced(folder, time.time())
        if starts:
            threading.Thread(target=self._run, name="sync", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._every_s)
            with self._lock:
                dirty, self._dirty = self._dirty, set()
                if not dirty:
                    self._is_running = False
                    return
            for folder in dirty:
                moment_s = time.time()
                if sync_folder(folder) and lost_since_s(folder) is None:
                    note_synced(folder, moment_s)


def sync_folder(folder: str) -> bool:
    """Write everything that was placed on the file system of a folder to its disk. Whether that was done."""
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return bool(ctypes.CDLL(None, use_errno=True).syncfs(file) == 0)
    except (AttributeError, OSError):  # not Linux
        os.sync()
        return True
    finally:
        os.close(file)
