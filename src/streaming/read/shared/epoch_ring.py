"""Which epoch an iteration is: one answer for all workers of a loader, without a rendezvous.

The rank process owns one file without a name. Its loader workers inherit it (by fork) or are handed it (spawn,
forkserver), and nobody else can reach it, so it dies with the last of them, however they die. It holds the epochs
started lately, each with the loader that it belongs to and the workers that have joined it, and where to go on after
`load_state_dict`.

A loader is known by its key. PyTorch draws a base seed per loader iteration, which all its workers know; our own
loader sets a key of its own. A worker that begins to iterate joins the oldest epoch of its loader's key that no
process has yet joined in its location (worker number), else it begins the next one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import context, reduction
from typing import Any, Final

from streaming.errors import ClosedError, OptionError
from streaming.fork_safety import ForkSafeLock, members
from streaming.order import Cursor
from streaming.read.shared.anonymous_file import anonymous_file

_HEADER: Final = struct.Struct(
    "<qqqqq"
)  # epochs started so far, epoch to begin next, has cursor, its epoch, its samples
_ENTRY: Final = struct.Struct("<qqqqqq")  # key, epoch, start, batch size (0: the dataset's), workers, given up
_N_ENTRIES: Final = 16
_MAX_WORKERS: Final = 1024
_ENTRY_BYTES: Final = _ENTRY.size + 4 * _MAX_WORKERS  # then the process number of each worker that has joined
_FILE_BYTES: Final = _HEADER.size + _N_ENTRIES * _ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class StartedEpoch:
    """An epoch that has started: its number, the samples spent before its first one here, and the batch size.

    `number`: how many epochs had started before it, in this rank process and its workers.
    """

    epoch: int
    start: int
    batch_size: int | None
    number: int


@dataclass(frozen=True, slots=True)
class Loader:
    """Who iterates: the loader's key, and this worker's number of how many; a process without workers is 0 of 1."""

    key: int
    worker: int
    n_workers: int


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """What a checkpoint must say: the last epoch started and its start, or where to go that no iteration has taken up."""

    epoch: int
    start: int
    is_pending: bool


class EpochRing:
    """The epochs started in one rank process and its workers. Owns one descriptor; safe between threads and processes."""

    def __init__(self) -> None:
        self._adopt(anonymous_file("streaming-epochs", _FILE_BYTES))

    def _adopt(self, fd: int) -> None:
        self._fd = fd
        self._is_closed = False
        self._lock = ForkSafeLock()
        self._close = weakref.finalize(self, os.close, fd)  # a forked child closes its own copy
        self._close.atexit = False
        _rings.add(self)

    # --- what the rank process does

    def begin(self, loader: Loader, *, n_epoch_samples: int, batch_size: int | None = None) -> StartedEpoch:
        """Begin the next epoch for a loader whose workers have not started yet; they will join it."""
        with self._locked() as ring:
            return ring.append(loader, n_epoch_samples, batch_size)

    def set_next(self, epoch: int) -> None:
        """The next epoch to begin, from its start; forgets a cursor that was loaded."""
        with self._locked() as ring:
            ring.header = (ring.header[0], epoch, 0, 0, 0)

    def resume_at(self, epoch: int, consumed: int) -> None:
        """The next epoch to begin is `epoch` with `consumed` samples spent (at its end: the one after)."""
        with self._locked() as ring:
            ring.header = (ring.header[0], ring.header[1], 1, epoch, consumed)

    @property
    def next_epoch(self) -> int:
        """The epoch that begins next if nothing is loaded or set."""
        with self._locked() as ring:
            return ring.header[1]

    def progress(self) -> EpochProgress:
        """Where a checkpoint taken now stands; epoch -1 before the first."""
        with self._locked() as ring:
            n_begun, next_epoch, has_cursor, epoch, consumed = ring.header
            if has_cursor:
                return EpochProgress(epoch, consumed, is_pending=True)
            if next_epoch == 0:
                return EpochProgress(-1, 0, is_pending=True)
            if n_begun:
                _, epoch, start, _, _, _ = ring.entry(n_begun - 1)
                if epoch == next_epoch - 1:
                    return EpochProgress(epoch, start, is_pending=False)
            return EpochProgress(next_epoch, 0, is_pending=True)  # set by `set_next`

    # --- what a worker does

    def join(self, loader: Loader, *, n_epoch_samples: int) -> StartedEpoch:
        """The epoch that this iteration is: one that its loader has started already, else the next."""
        if loader.worker >= _MAX_WORKERS:
            raise OptionError(f"a loader can have at most {_MAX_WORKERS} workers, this is number {loader.worker}")
        with self._locked() as ring:
            for number in ring.numbers():
                key, epoch, start, batch_size, _, given_up = ring.entry(number)
                if key == loader.key and not given_up and not ring.process(number, loader.worker):
                    ring.mark(number, loader.worker)
                    return StartedEpoch(epoch, start, batch_size or None, number)
            started = ring.append(loader, n_epoch_samples, None)
            ring.mark(ring.header[0] - 1, loader.worker)
            return started

    def give_up_abandoned(self) -> None:
        """Close epochs that some workers never joined and others have left: their loader was dropped early.

        Else a new loader iteration with the same base seed (`torch.manual_seed` before every epoch) would send some
        of its workers into the old epoch.
        """
        with self._locked() as ring:
            for number in ring.numbers():
                *facts, n_workers, given_up = ring.entry(number)
                joined = [process for process in ring.processes(number, n_workers) if process]
                if not given_up and len(joined) < n_workers and any(map(_is_gone, joined)):
                    ring.set_entry(number, (*facts, n_workers, 1))

    # --- the file

    @contextmanager
    def _locked(self) -> Iterator[_RingFile]:
        # Two locks: the kernel's belongs to the process and does not keep its threads apart.
        with self._lock:
            if self._is_closed:
                raise ClosedError("the dataset is closed")
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                yield _RingFile(self._fd)
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        """The descriptor, if a worker process is being started; a pickle for anywhere else is a ring of its own."""
        if context.get_spawning_popen() is None:
            return EpochRing, ()
        self.give_up_abandoned()
        return _handed_ring, (reduction.DupFd(self._fd),)

    def close(self) -> None:
        """Give the descriptor back. Using the ring afterwards raises ClosedError."""
        self._is_closed = True  # its number may be another file's from now on
        self._close()


class _RingFile:
    """The file's content while it is locked."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def header(self) -> tuple[int, int, int, int, int]:
        found: tuple[int, int, int, int, int] = _HEADER.unpack(os.pread(self._fd, _HEADER.size, 0))
        return found

    @header.setter
    def header(self, values: tuple[int, int, int, int, int]) -> None:
        os.pwrite(self._fd, _HEADER.pack(*values), 0)

    def numbers(self) -> range:
        """The numbers of the entries still held, oldest first."""
        n_begun = self.header[0]
        return range(max(0, n_begun - _N_ENTRIES), n_begun)

    @staticmethod
    def _at(number: int) -> int:
        return _HEADER.size + number % _N_ENTRIES * _ENTRY_BYTES

    def entry(self, number: int) -> tuple[int, int, int, int, int, int]:
        found: tuple[int, int, int, int, int, int] = _ENTRY.unpack(os.pread(self._fd, _ENTRY.size, self._at(number)))
        return found

    def set_entry(self, number: int, values: tuple[int, ...]) -> None:
        os.pwrite(self._fd, _ENTRY.pack(*values), self._at(number))

    def processes(self, number: int, n_workers: int) -> tuple[int, ...]:
        """Per worker number below `n_workers`: the process that has joined in this location, or 0."""
        block = os.pread(self._fd, 4 * n_workers, self._at(number) + _ENTRY.size)
        return struct.unpack(f"<{n_workers}i", block)

    def process(self, number: int, worker: int) -> int:
        """The process that has joined as this worker, or 0."""
        return self.processes(number, worker + 1)[worker]

    def mark(self, number: int, worker: int) -> None:
        os.pwrite(self._fd, struct.pack("<i", os.getpid()), self._at(number) + _ENTRY.size + 4 * worker)

    def append(self, loader: Loader, n_epoch_samples: int, batch_size: int | None) -> StartedEpoch:
        n_begun, epoch, has_cursor, cursor_epoch, start = self.header
        if has_cursor:
            cursor = Cursor(cursor_epoch, start).normalised(n_epoch_samples)
            epoch, start = cursor.epoch, cursor.consumed
        else:
            start = 0
        block = _ENTRY.pack(loader.key, epoch, start, batch_size or 0, loader.n_workers, 0)
        os.pwrite(self._fd, block + bytes(4 * _MAX_WORKERS), self._at(n_begun))
        # Last, so that a process that is killed here has started nothing.
        self.header = (n_begun + 1, epoch + 1, 0, 0, 0)
        return StartedEpoch(epoch, start, batch_size, n_begun)


_rings: weakref.WeakSet[EpochRing] = weakref.WeakSet()


def _give_up_abandoned() -> None:
    for ring in members(_rings):
        with suppress(OSError, ClosedError):
            ring.give_up_abandoned()


os.register_at_fork(before=_give_up_abandoned)


def _handed_ring(handed: Any) -> EpochRing:
    """In a started worker: the ring of the process that started it."""
    ring = EpochRing.__new__(EpochRing)
    ring._adopt(handed.detach())
    return ring


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
