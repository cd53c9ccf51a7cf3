"""The fetcher's process, from its first instruction to its last.

What a starter leaves behind (limits, affinity, working directory, terminal, parent) is shed here, before the one fork,
while there is a single thread and no client library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from typing import Final, NoReturn

from streaming.cache.files import Temporaries
from streaming.fetch.log import log
from streaming.fetch.meeting import EXIT_HELD, EXIT_UNUSABLE, Place
from streaming.fetch.server import Server
from streaming.fetch.services import make_services

_MAX_LOG_BYTES: Final = 1 << 20
_LOOK_S: Final = 5.0
_BACKLOG: Final = 512


def main(root: str | None, folder: str, name: str) -> NoReturn:
    """Serve at this place until the last client has gone. The calling process ends when clients can connect."""
    place = Place(folder, name)
    umask = _shed_starter()
    try:
        lock = _hold_lock(place)
        ear = _listen(place, umask)
    except OSError as error:
        log(f"cannot serve at {place.folder}: {error}")
        _end(EXIT_UNUSABLE)
    if os.fork():
        os._exit(0)  # the starter has nothing to reap, and knows that we listen
    temporaries, ours = Temporaries(umask=umask), _inode(place.socket)
    try:
        services = make_services(temporaries)
        if root is not None:
            services.engine.roots([root])
        threading.Thread(target=_keep_house, args=(place, ours), name="house", daemon=True).start()
        Server(services).serve(ear)
    except Exception:
        log(traceback.format_exc())
    finally:
        with contextlib.suppress(OSError):
            if _inode(place.socket) == ours:
                os.unlink(place.socket)  # whoever is in the backlog is reset and asks again
            ear.close()
        temporaries.close()
        os.close(lock)
        _end(0)


def _shed_starter() -> int:
    """Undo what the starter's limits and session would do to us; its umask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    os.chdir("/")
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _hold_lock(place: Place) -> int:
    lock = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _end(EXIT_HELD)
    return lock


def _listen(place: Place, umask: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place.socket)
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chdir(place.folder)  # an address holds about a hundred bytes
    os.umask(0o177)
    try:
        ear.bind(os.path.basename(place.socket))
    finally:
        os.umask(umask)
        os.chdir("/")
    ear.listen(_BACKLOG)
    return ear


def _keep_house(place: Place, ours: int) -> None:
    """Keep the log from growing without end, and end when nobody can find us any more."""
    while True:
        time.sleep(_LOOK_S)
        with contextlib.suppress(OSError):
            status = os.fstat(2)
            if stat.S_ISREG(status.st_mode) and status.st_size > _MAX_LOG_BYTES:
                os.ftruncate(2, 0)  # opened to append, so the next line comes first
        if _inode(place.socket) != ours:  # somebody removed the folder: holding the lock we would keep others out
            os.kill(os.getpid(), signal.SIGTERM)


def _inode(path: str) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def _end(code: int) -> NoReturn:
    """End now: transfers are threads in native code, which nothing else stops."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
