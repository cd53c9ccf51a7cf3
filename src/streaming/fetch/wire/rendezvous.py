"""Where a client and the fetcher meet, and how each makes sure who the other is.

A rendezvous is a private folder and a name. The name is a digest of everything that must be equal before two processes
may share a fetcher: the protocol, this package, the interpreter, and what stores read from the environment. The folder
is `<root>/.streaming/<host>-<uid>`, or a private folder of the machine if that one cannot be used.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streaming.errors import FetchError
from streaming.fetch.wire.protocol import PROTOCOL, VERSION
from streaming.storage.environment import variables_of_stores
from streaming.storage.registry import registered_stores

PACKAGE_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXIT_HELD: Final = 3
"""The exit code of a fetcher that finds another one serving here."""
EXIT_UNUSABLE: Final = 4
"""The exit code of a fetcher that can make no lock or socket here."""

_MAX_ADDRESS_BYTES: Final = 100  # sun_path holds 108 on Linux, 104 elsewhere


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A private folder of this user on this machine, and the name of the fetcher there."""

    folder: str
    name: str

    @property
    def socket(self) -> str:
        """Where the fetcher listens."""
        return self._file("sock")

    @property
    def lock(self) -> str:
        """The file that the fetcher keeps locked for life. It is never removed."""
        return self._file("lock")

    @property
    def start(self) -> str:
        """The file that a process keeps locked while it starts a fetcher."""
        return self._file("start")

    @property
    def log(self) -> str:
        """The fetcher's log."""
        return self._file("log")

    def _file(self, suffix: str) -> str:
        return os.path.join(self.folder, f"{self.name}.{suffix}")


class RendezvousError(Exception):
    """This rendezvous cannot be used; another may."""


def identity(environment: Mapping[str, str]) -> str:
    """A digest of everything that makes two processes the same to a store and to the fetcher."""
    stores = sorted(registered_stores().items())
    facts = [PROTOCOL, VERSION, PACKAGE_FOLDER, sys.executable, variables_of_stores(environment), stores]
    return _digest(json.dumps(facts))


def rendezvous_in_root(root: str, environment: Mapping[str, str]) -> Rendezvous:
    """The rendezvous below the cache root. RendezvousError if its folder cannot be made or written, or is another's."""
    try:
        os.makedirs(root, exist_ok=True)
        common = os.path.join(root, ".streaming")
        if not os.path.isdir(common):
            os.makedirs(common, exist_ok=True)
            # Everybody who may write the cache may meet in it, and nobody may move what is another's.
            os.chmod(common, stat.S_IMODE(os.stat(root).st_mode) | stat.S_ISVTX)
        folder = os.path.join(common, f"{_host()}-{os.geteuid()}")
        _make_private(folder)
        if not os.access(folder, os.W_OK | os.X_OK) or os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise RendezvousError(f"{folder} cannot be written")
    except OSError as error:
        raise RendezvousError(f"no private folder below {root}: {error}") from error
    return Rendezvous(folder, identity(environment))


def private_rendezvous(root: str | None, environment: Mapping[str, str]) -> Rendezvous:
    """The rendezvous outside the cache root, for a root that cannot be written, or for no root (None)."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    folders = [os.path.join(runtime, "streaming")] if os.path.isabs(runtime) else []
    folders.append(os.path.join(tempfile.gettempdir(), f"streaming-{os.geteuid()}"))
    name = identity(environment)
    if root is not None:
        name = _digest(json.dumps([os.path.realpath(root), name]))
    reasons = []
    for folder in folders:
        try:
            _make_private(folder)
            return Rendezvous(folder, name)
        except (OSError, RendezvousError) as error:
            reasons.append(str(error))
    raise FetchError(
        f"the fetcher has no place to meet at, neither below the cache {root} nor in the machine's folders "
        f"({'; '.join(reasons)}); make one of them writable, or set TMPDIR"
    )


def open_own(path: str, flags: int) -> int:
    """Open a file of a private folder, made if `flags` say so. The receiver closes the descriptor.

    It follows no link, neither of the file nor of its folder, since another user who may write the folder above could
    have put one there. Raises OSError, and RendezvousError for a file or folder that is not this user's alone.
    """
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_private(os.path.dirname(path), os.fstat(folder))
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(os.path.basename(path), flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink <= 1:
        return file
    os.close(file)
    raise RendezvousError(f"{path} is not a file of this user alone")


def connect(rendezvous: Rendezvous, *, timeout_s: float) -> socket.socket:
    """Connect to the fetcher that listens here. FileNotFoundError or ConnectionError if none does."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(timeout_s)
        if len(os.fsencode(rendezvous.socket)) <= _MAX_ADDRESS_BYTES:
            peer.connect(rendezvous.socket)
        else:
            _connect_long_path(peer, rendezvous)
        if peer_uid(peer) != os.geteuid():
            raise ConnectionRefusedError(f"another user listens at {rendezvous.socket}, which counts as nobody")
    except BaseException:
        peer.close()
        raise
    return peer


def peer_uid(peer: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    if hasattr(socket, "SO_PEERCRED"):
        uid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        return uid
    # LOCAL_PEERCRED: struct xucred, whose second word is the uid
    return int(struct.unpack_from("Ii", peer.getsockopt(0, 1, 76))[1])


def log_tail(rendezvous: Rendezvous, *, n_bytes: int = 1500) -> str:
    """The last lines of the fetcher's log, or why there are none."""
    try:
        with open(open_own(rendezvous.log, os.O_RDONLY), "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - n_bytes))
            return log.read().decode(errors="replace").strip() or "(the log is empty)"
    except (OSError, RendezvousError) as error:
        return f"(no log: {error})"


def _connect_long_path(peer: socket.socket, rendezvous: Rendezvous) -> None:
    """Connect where the path is longer than the hundred bytes of an address: through the kernel's link to the folder.

    Where there is no /proc, a link in a fresh private folder serves, so that nobody can swap it. A kill can leave that
    folder behind.
    """
    folder = os.open(rendezvous.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kernel_link = f"/proc/self/fd/{folder}"
        if os.path.isdir(kernel_link):
            peer.connect(f"{kernel_link}/{rendezvous.name}.sock")
            return
    finally:
        os.close(folder)
    with tempfile.TemporaryDirectory(prefix="sf") as shortcut:
        link = os.path.join(shortcut, "d")
        os.symlink(rendezvous.folder, link)
        peer.connect(os.path.join(link, f"{rendezvous.name}.sock"))


def _make_private(folder: str) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _check_private(folder, os.lstat(folder))


def _check_private(folder: str, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise RendezvousError(f"{folder} is not a private folder of this user")


def _host() -> str:
    return socket.gethostname().replace("/", "_") or "localhost"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=9).hexdigest()
