"""The fetcher inside the process that asks, where no other process can be started or met.

The same code runs as threads; a connection is a pair of sockets. What a process of its own gives is lost: budgets for
the whole machine, and read-ahead that outlives workers. Each file is claimed while it comes, so that it comes once to a
machine.

Clients of network stores must not be in a process that forks, so its children are refused.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import sys
import threading
from typing import Final

from streaming.cache.durability import SyncKeeper
from streaming.cache.files import Temporaries, fetch_lock
from streaming.errors import FetchError
from streaming.fetch.decide.transfers import Transfer
from streaming.fetch.server.server import Server
from streaming.fetch.server.services import make_services

_log: Final = logging.getLogger("streaming")
_lock = threading.Lock()
_server: Server | None = None
_is_forked = False  # from a process in which a network store was open


def connect_in_process(reason: str) -> socket.socket:
    """Connect to the fetcher of this process, which starts with the first call. Raises FetchError in a forked child.

    `reason` says why there is no other fetcher.
    """
    global _server
    if _is_forked:
        raise FetchError(
            f"{reason}; and this process was forked from one in which the transfers run, which cannot work in a child. "
            "Use num_workers=0, or multiprocessing_context='spawn'"
        )
    with _lock:
        if _server is None:
            _log.warning("%s; transfers run in this process", reason)
            temporaries = Temporaries(umask=_umask(), placing=SyncKeeper().placing)
            atexit.register(temporaries.close)
            _server = Server(make_services(temporaries, _claim))
            threading.Thread(target=_server.keep_time, name="fetcher", daemon=True).start()
        server = _server
    ours, theirs = socket.socketpair()
    threading.Thread(target=server.serve_peer, args=(theirs,), name="client", daemon=True).start()
    return ours


def _claim(transfer: Transfer) -> contextlib.AbstractContextManager[None]:
    return fetch_lock(transfer.config.root or transfer.key.local, transfer.path)


def _umask() -> int:
    """The umask of this process, read without changing it, since other threads make files meanwhile."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration, ValueError):
        return 0o022


def _after_fork() -> None:
    global _server, _lock, _is_forked
    _is_forked = _is_forked or (_server is not None and "obstore" in sys.modules)
    _server, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
