"""Files of the cache: which are present, and how a file appears.

Rules:
1. A file is present iff its final name exists with the size that the index states. Nothing else says so.
2. A file appears whole, and the temporary of a dead writer is abandoned; see `placement`.
3. Room on the disk is taken before the first byte is moved.
4. Nothing is written outside the cache folder, whatever names and links say.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from streaming.errors import CacheWriteError, NoRoomError, StorageError
from streaming.placement import UnplacedFile, delete_if_abandoned, is_temporary, lock

_UNSUPPORTED: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNWRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_READ_BYTES: Final = 1 << 20
_MARK: Final = "user.streaming.copy"  # the extended attribute that names the object of which a file is a copy
_CHECKED: Final = "user.streaming.checked"  # and that which says which hash of it was seen to be right
PRIVATE_FOLDER: Final = ".streaming"  # sockets, locks and logs: never swept


def table_name(name: str) -> str:
    """The name of the offset table that lies beside the file `name`, or beside the place of that file."""
    folder, base = os.path.split(name)
    return os.path.join(folder, f".{base}.table")


def is_present(path: str, n_bytes: int) -> bool:
    """Whether `path` is a file of `n_bytes` (of any size if `n_bytes` is negative)."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and n_bytes in (-1, status.st_size)


class Temporaries:
    """The half-written files of this process. Closing deletes them all and lets no new one begin."""

    def __init__(self, *, umask: int, placing: Callable[[str], None] = lambda folder: None) -> None:
        """`placing` is called with the root of a file before its first byte, and again before it gets its name."""
        self._mode = 0o644 & ~umask
        self._placing = placing
        self._lock = threading.Lock()
        self._paths: set[str] = set()
        self._closed = False

    @contextlib.contextmanager
    def begin(self, root: str, name: str, *, n_bytes: int) -> Iterator[Temporary]:
        """A temporary for the file `root/name`, with room for `n_bytes` (negative: unknown); deleted unless placed.

        Raises NoRoomError if the disk has no room, StorageError if the folder cannot be written or lies outside `root`.
        """
        final = os.path.join(root, name)
        with translating_errors(final):
            make_folder(root, os.path.dirname(name))
            self._placing(root)
            unplaced = self._create(final)
        try:
            temporary = Temporary(unplaced, self._mode, partial(self._placing, root))
            if n_bytes > 0:
                temporary.allocate(n_bytes)
            yield temporary
        finally:
            unplaced.close()
            with self._lock:
                self._paths.discard(unplaced.path)

    def paths(self) -> frozenset[str]:
        """The paths of the temporaries that are being written now."""
        with self._lock:
            return frozenset(self._paths)

    def close(self) -> None:
        """Delete all temporaries. Writers that go on write into files without a name."""
        with self._lock:
            self._closed = True
            for path in self._paths:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _create(self, final: str) -> UnplacedFile:
        with self._lock:  # while it is created, too: `close` must not miss it
            if self._closed:
                raise StorageError(f"{final}: not fetched, the fetcher is ending")
            unplaced = UnplacedFile(final, mode=0o600)
            self._paths.add(unplaced.path)
        return unplaced


class Temporary:
    """One file that is being written. `Temporaries.begin` makes and closes it."""

    def __init__(self, unplaced: UnplacedFile, mode: int, placing: Callable[[], None]) -> None:
        self._unplaced, self._file, self._mode, self._placing = unplaced, unplaced.file, mode, placing
        self._lock = threading.Lock()
        self.n_bytes = 0  # written so far

    def allocate(self, n_bytes: int) -> None:
        """Take room on the disk before any byte is moved, so that a full disk is met first. Raises NoRoomError."""
        with self._translating_errors():
            try:
                os.posix_fallocate(self._file, 0, n_bytes)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:  # else the file system cannot, and writing meets the full disk
                    raise

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a chunk."""
        with self._translating_errors(), memoryview(chunk) as whole:
            done = 0
            while done < len(whole):
                done += os.write(self._file, whole[done:])
        self.n_bytes += done

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write a piece at its offset. Pieces may come in any order, from several threads."""
        with self._translating_errors(), memoryview(data) as whole:
            done = 0
            while done < len(whole):
                done += os.pwrite(self._file, whole[done:], offset + done)
        with self._lock:
            self.n_bytes = max(self.n_bytes, offset + done)

    def read_back(self) -> Iterator[bytes]:
        """Yield what was written, in order."""
        offset = 0
        while chunk := os.pread(self._file, _READ_BYTES, offset):
            yield chunk
            offset += len(chunk)

    def mark(self, mark: str) -> None:
        """Note of which object this is a copy, where the file system can keep that; see `read_mark`."""
        with contextlib.suppress(OSError, AttributeError):
            os.setxattr(self._file, _MARK, mark.encode())

    def place(self, *, checked: str | None = None) -> None:
        """Let the file appear under its final name, with what was written and no more.

        `checked`: the hash that its bytes were found to have; see `mark_checked`.
        """
        with self._translating_errors():
            os.ftruncate(self._file, self.n_bytes)
            os.fchmod(self._file, self._mode)
            if checked is not None:
                mark_checked(self._file, checked)
            self._placing()
            self._unplaced.place()

    def _translating_errors(self) -> contextlib.AbstractContextManager[None]:
        return translating_errors(self._unplaced.final)


def read_mark(path: str) -> str | None:
    """The object of which a file is a copy, as `Temporary.mark` noted it; None if there is no note."""
    try:
        return os.getxattr(path, _MARK).decode()
    except (OSError, AttributeError, ValueError):  # no such attribute, or a file system or system that has none
        return None


def mark_checked(file: int, checked: str) -> None:
    """Note with an open file, where its file system can keep that, which hash its bytes were found to have.

    The note holds for the bytes that are there now, and until the machine starts again: what a file system had not
    written when a machine died may be lost though the note is not.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setxattr(file, _CHECKED, _check_note(file, checked))


def is_checked(file: int, checked: str) -> bool:
    """Whether the bytes of an open file were found to have this hash, and have not changed since."""
    try:
        return os.getxattr(file, _CHECKED) == _check_note(file, checked)
    except (OSError, AttributeError):
        return False


def _check_note(file: int, checked: str) -> bytes:
    status = os.fstat(file)
    return f"{boot_id()} {status.st_size} {status.st_mtime_ns} {checked}".encode()


@functools.cache
def boot_id() -> str:
    """What tells this run of the machine from the one before; "" where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def make_folder(root: str, relative: str) -> None:
    """Make the folder `root/relative`. New folders take the mode and group of `root`, so that all its users can write.

    Raises StorageError if a link leads out of `root`.
    """
    os.makedirs(root, exist_ok=True)
    if not relative:
        return
    path = os.path.join(root, relative)
    _check_inside(root, path)
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
        _check_inside(root, path)  # a link may have been put there meanwhile


def _check_inside(root: str, path: str) -> None:
    """Raise StorageError if a link leads out of `root` on the way to `path`, which need not exist."""
    real_root = os.path.realpath(root)
    if os.path.commonpath([real_root, os.path.realpath(path)]) != real_root:
        raise StorageError(f"{path} leads out of the cache folder {root} by a link; remove the link")


def sweep(root: str) -> int:
    """Delete the temporaries of dead writers below `root`; returns how many."""
    n_swept = 0
    for folder, folders, names in os.walk(root):
        if PRIVATE_FOLDER in folders:
            folders.remove(PRIVATE_FOLDER)
        for name in names:
            if is_temporary(name):
                n_swept += delete_if_abandoned(os.path.join(folder, name))
    return n_swept


@contextlib.contextmanager
def fetch_lock(root: str, path: str) -> Iterator[None]:
    """A block that one process at a time can enter for each `path`, for processes that fetch into one cache.

    The kernel frees the lock of a dead process. Where no lock can be made the block is entered all the same: two
    processes that fetch one file do no harm but the double transfer.
    """
    file = None
    try:
        folder = os.path.join(root, PRIVATE_FOLDER, f"claims-{os.geteuid()}")
        lock_path = os.path.join(folder, hashlib.blake2b(os.fsencode(path), digest_size=12).hexdigest())
        with contextlib.suppress(OSError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            file = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            lock(file)
        yield
    finally:
        if file is not None:
            # A process that waits for this lock gets it, but without a name; it first checks whether the file came.
            with contextlib.suppress(OSError):
                os.unlink(lock_path)
            os.close(file)


@contextlib.contextmanager
def translating_errors(final: str) -> Iterator[None]:
    """Raise the system's errors as kinds of StorageError that name the file `final` and say what to do."""
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
