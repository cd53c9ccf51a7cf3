"""Files of the cache: what is there, and how a file appears.

Rules:
1. A file is there iff its final name exists with the size that the index states. Nothing else says so.
2. A file appears whole, by renaming a temporary of the same folder; who loses a race has lost nothing.
3. A temporary is locked by its writer for as long as it is written. The kernel frees the lock of a dead writer, so a
   temporary that can be locked is rubbish, and one that cannot is somebody's work.
4. Nothing is written outside the cache folder, whatever names and links say.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Iterator
from typing import Final

from streaming.errors import CacheWriteError, NoRoomError, StorageError

_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)
_UNSUPPORTED: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_BYTES: Final = 1 << 20
_MARK: Final = "user.streaming.copy"  # an attribute of a file: of which object it is a copy
_UNWRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
PRIVATE_FOLDER: Final = ".streaming"  # sockets, locks and logs: never swept


def table_name(name: str) -> str:
    """What the offset table of a file is called that lies beside it, or beside its place."""
    folder, base = os.path.split(name)
    return os.path.join(folder, f".{base}.table")


def is_temporary(name: str) -> bool:
    """Whether a file of this name is somebody's half-written work, or was."""
    return _TEMPORARY.fullmatch(name) is not None


def is_present(path: str, n_bytes: int) -> bool:
    """Whether `path` is a file of `n_bytes` (of any size if that is negative)."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and n_bytes in (-1, status.st_size)


class Temporaries:
    """The half-written files of this process; closing deletes them all and lets no new one begin."""

    def __init__(self, *, umask: int) -> None:
        self._mode = 0o644 & ~umask
        self._lock = threading.Lock()
        self._paths: set[str] = set()
        self._closed = False

    @contextlib.contextmanager
    def begin(self, root: str, name: str, *, n_bytes: int) -> Iterator[Temporary]:
        """A temporary for the file `root/name`, with room for `n_bytes` (negative: unknown); gone unless placed.

        Raises NoRoomError if the disk has no room, StorageError if the folder cannot be written or lies outside `root`.
        """
        final = os.path.join(root, name)
        with told(final):
            make_folder(root, os.path.dirname(name))
            file, path = self._create(final)
        try:
            temporary = Temporary(file, path, final, self._mode)
            if n_bytes > 0:
                temporary.take_room(n_bytes)
            yield temporary
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)  # renamed by now if it was placed
            os.close(file)
            with self._lock:
                self._paths.discard(path)

    def paths(self) -> frozenset[str]:
        """The temporaries that are being written now."""
        with self._lock:
            return frozenset(self._paths)

    def close(self) -> None:
        """Delete all; writers that go on write into files without a name."""
        with self._lock:
            self._closed = True
            for path in self._paths:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _create(self, final: str) -> tuple[int, str]:
        folder, base = os.path.split(final)
        while True:
            path = os.path.join(folder, f".{base[:60]}.{os.urandom(8).hex()}.tmp")
            with self._lock:
                if self._closed:
                    raise StorageError(f"{final}: not fetched, the fetcher is ending")
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                self._paths.add(path)
            _lock(file)
            if os.fstat(file).st_nlink:  # else a sweeper was between the open and the lock
                return file, path
            os.close(file)
            with self._lock:
                self._paths.discard(path)


class Temporary:
    """One file being written. Made by `Temporaries.begin`, which also closes it."""

    def __init__(self, file: int, path: str, final: str, mode: int) -> None:
        self._file, self._path, self._final, self._mode = file, path, final, mode
        self._lock = threading.Lock()
        self.n_bytes = 0  # written so far

    def take_room(self, n_bytes: int) -> None:
        """Reserve the room before any byte is moved, so that a full disk is met first."""
        with told(self._final):
            try:
                os.posix_fallocate(self._file, 0, n_bytes)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:  # a file system without reservations: met when written
                    raise

    def write(self, chunk: bytes | memoryview) -> None:
        """Append."""
        with told(self._final), memoryview(chunk) as whole:
            done = 0
            while done < len(whole):
                done += os.write(self._file, whole[done:])
        self.n_bytes += done

    def write_at(self, offset: int, data: bytes) -> None:
        """Write a piece where it belongs; pieces may come in any order, from several threads."""
        with told(self._final), memoryview(data) as whole:
            done = 0
            while done < len(whole):
                done += os.pwrite(self._file, whole[done:], offset + done)
        with self._lock:
            self.n_bytes = max(self.n_bytes, offset + done)

    def read_back(self) -> Iterator[bytes]:
        """What was written, in order."""
        offset = 0
        while chunk := os.pread(self._file, _READ_BYTES, offset):
            yield chunk
            offset += len(chunk)

    def mark(self, mark: str) -> None:
        """Say of which object this is a copy, where the file system can keep that; see `read_mark`."""
        with contextlib.suppress(OSError, AttributeError):
            os.setxattr(self._file, _MARK, mark.encode())

    def place(self) -> None:
        """Let the file appear under its final name, with what was written and no more."""
        with told(self._final):
            os.ftruncate(self._file, self.n_bytes)
            os.fchmod(self._file, self._mode)
            os.rename(self._path, self._final)


def read_mark(path: str) -> str | None:
    """Of which object a file is a copy, if it says so."""
    try:
        return os.getxattr(path, _MARK).decode()
    except (OSError, AttributeError, ValueError):  # no such attribute, or a file system or system that has none
        return None


def make_folder(root: str, relative: str) -> None:
    """The folder `root/relative`; what is new takes the mode and group of `root`, so that all its users can write.

    Raises StorageError if a link leads out of `root`.
    """
    os.makedirs(root, exist_ok=True)
    if not relative:
        return
    path = os.path.join(root, relative)
    if not os.path.isdir(path):
        like = os.stat(root)
        step = root
        for part in relative.split("/"):
            step = os.path.join(step, part)
            try:
                os.mkdir(step)
            except FileExistsError:
                continue
            with contextlib.suppress(PermissionError):  # not a member of the group: the mode alone must do
                os.chown(step, -1, like.st_gid)
            os.chmod(step, stat.S_IMODE(like.st_mode))
    real_root = os.path.realpath(root)
    if os.path.commonpath([real_root, os.path.realpath(path)]) != real_root:
        raise StorageError(f"{path} leads out of the cache folder {root} by a link; remove the link")


def sweep(root: str) -> int:
    """Delete the temporaries of dead writers below `root`; how many there were."""
    n_swept = 0
    for folder, folders, names in os.walk(root):
        if PRIVATE_FOLDER in folders:
            folders.remove(PRIVATE_FOLDER)
        for name in names:
            if is_temporary(name):
                n_swept += delete_if_dead(os.path.join(folder, name))
    return n_swept


def delete_if_dead(path: str) -> bool:
    """Delete this temporary if nobody is writing it any more; whether it was deleted."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:  # somebody's work, another sweeper's, or no locks here: leave it
        return False
    finally:
        os.close(file)
    return True


def _lock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # at most a sweeper holds it, for a moment
    except OSError as error:
        if error.errno not in _UNSUPPORTED:  # without locks nobody can take it for rubbish either
            raise


@contextlib.contextmanager
def told(final: str) -> Iterator[None]:
    """The system's errors, with the file that they befell and what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise NoRoomError(f"no room on the disk for {final}; make room there, or choose another `local`") from error
        kind = CacheWriteError if error.errno in _UNWRITABLE else StorageError
        raise kind(
            f"cannot write {final}: {error.strerror or error}; check owner, mode and file system of its folder"
        ) from error
