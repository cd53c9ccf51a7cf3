"""The fetcher's process, from its first instruction to its last.

The process sheds what its starter leaves behind (limits, affinity, working directory, terminal, parent) before its one
fork, while there is a single thread and no client library.
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

from streaming.cache.durability import SyncKeeper
from streaming.cache.files import Temporaries
from streaming.fetch.server.server import Server
from streaming.fetch.server.services import make_services
from streaming.fetch.transfer.log import log
from streaming.fetch.wire.rendezvous import EXIT_HELD, EXIT_UNUSABLE, Rendezvous, RendezvousError, open_own

_MAX_LOG_BYTES: Final = 1 << 20
_HOUSEKEEPING_S: Final = 5.0
_BACKLOG: Final = 512


def main(root: str | None, folder: str, name: str) -> NoReturn:
    """Serve at this rendezvous until the last client has gone. The calling process ends when clients can connect."""
    rendezvous = Rendezvous(folder, name)
    umask = _shed_starter()
    try:
        lock = _hold_lock(rendezvous)
        listener = _listen(rendezvous, umask)
    except (OSError, RendezvousError) as error:
        log(f"cannot serve at {rendezvous.folder}: {error}")
        _end(EXIT_UNUSABLE)
    if os.fork():
        os._exit(0)  # the starter has nothing to reap, and knows that we listen
    temporaries, ours = Temporaries(umask=umask, placing=SyncKeeper().placing), _inode(rendezvous.socket)
    try:
        services = make_services(temporaries)
        if root is not None:
            services.engine.sweep([root])
        threading.Thread(target=_keep_house, args=(rendezvous, ours), name="housekeeping", daemon=True).start()
        Server(services).serve(listener)
    except Exception:
        log(traceback.format_exc())
    finally:
        with contextlib.suppress(OSError):
            if _inode(rendezvous.socket) == ours:
                os.unlink(rendezvous.socket)  # a client in the backlog is reset and asks again
            listener.close()
        temporaries.close()
        os.close(lock)
        _end(0)


def _shed_starter() -> int:
    """Undo what the starter's limits and session would do to us. Returns its umask."""
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


def _hold_lock(rendezvous: Rendezvous) -> int:
    lock = open_own(rendezvous.lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _end(EXIT_HELD)
    return lock


def _listen(rendezvous: Rendezvous, umask: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(rendezvous.socket)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chdir(rendezvous.folder)  # an address holds about a hundred bytes
    os.umask(0o177)
    try:
        listener.bind(os.path.basename(rendezvous.socket))
    finally:
        os.umask(umask)
        os.chdir("/")
    listener.listen(_BACKLOG)
    return listener


def _keep_house(rendezvous: Rendezvous, ours: int) -> None:
    """Keep the log from growing without end, and end when nobody can find us any more."""
    while True:
        time.sleep(_HOUSEKEEPING_S)
        with contextlib.suppress(OSError):
            status = os.fstat(2)
            if stat.S_ISREG(status.st_mode) and status.st_size > _MAX_LOG_BYTES:
                os.ftruncate(2, 0)  # opened to append, so the next line comes first
        if _inode(rendezvous.socket) != ours:  # the folder was removed: holding the lock we would keep others out
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
