"""Which epoch an iteration is: one answer for all workers of a loader, without a rendezvous.

The rank process owns one anonymous file. Its loader workers inherit it (by fork) or are handed it (spawn, forkserver),
and nobody else can reach it, so it dies with the last of them, however they die. It holds the epochs started lately,
each with its loader and the workers that have joined it, and the cursor that `load_state_dict` has set.

A process that has inherited the ring and is no loader worker, such as a rank forked or spawned from a dataset, goes on
with a ring of its own from where this one stood when it was started.

A loader is known by its key. PyTorch draws a base seed per loader iteration, which all its workers know; our own
loader sets a key of its own. A worker that begins to iterate joins the oldest epoch of its loader's key that no
process has joined yet under its worker number. If there is none, it begins the next epoch.
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
from typing import Any, Final, NamedTuple

from streaming.errors import ClosedError, OptionError
from streaming.fork_safety import ForkSafeLock, members
from streaming.order import Cursor
from streaming.read.shared.rank_ownership import RankOwned, anonymous_file

_HEADER: Final = struct.Struct("<9q")
_ENTRY: Final = struct.Struct("<11q")
_N_ENTRIES: Final = 16
_MAX_WORKERS: Final = 1024
_ENTRY_BYTES: Final = _ENTRY.size + 4 * _MAX_WORKERS  # then the process number of each worker that has joined
_FILE_BYTES: Final = _HEADER.size + _N_ENTRIES * _ENTRY_BYTES


class LoadedOrder(NamedTuple):
    """What a loaded state has decided of the order, for all epochs from then on, if any has.

    A seed; canonical nodes and block size, 0 for the default.
    """

    is_any: bool = False
    seed: int = 0
    n_canonical_nodes: int = 0
    block_size: int = 0


_OWN_ORDER: Final = LoadedOrder()


@dataclass(frozen=True, slots=True)
class StartedEpoch:
    """An epoch that has started, from its first sample or from where a loaded state said."""

    epoch: int
    start: int
    """Samples over all ranks that were spent before its first one here."""
    batch_size: int
    """Samples per rank in a batch."""
    is_counted: bool
    """Whether our own loader has begun it, which counts its batches and what training waits for."""
    number: int
    """How many epochs had started before it, in this rank process and its workers."""
    loaded: LoadedOrder = _OWN_ORDER
    """What a state that was loaded before it has decided of its order."""


@dataclass(frozen=True, slots=True)
class Loader:
    """The loader of an iteration by its key, and this process as worker number `worker` of it.

    A process that iterates without workers is worker 0 of 1.
    """

    key: int
    worker: int
    n_workers: int


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """What a checkpoint must say: the last epoch started, and its start.

    `is_pending`: the epoch has not started yet. It is the first, or was set or loaded.
    """

    epoch: int
    start: int
    is_pending: bool


class EpochRing(RankOwned):
    """The epochs started in one rank process and its workers. Owns one descriptor; safe between threads and processes.

    After `close` all methods but `close` raise ClosedError.
    """

    def __init__(self) -> None:
        self._adopt(anonymous_file("streaming-epochs", _FILE_BYTES))
        self._belongs_to_this_process()

    def _adopt(self, fd: int, inherited: _Position | None = None) -> None:
        self._is_closed = False
        self._lock = ForkSafeLock()
        self._use(fd)
        self._inherited = _Position.of(fd) if inherited is None else inherited
        _rings.add(self)

    def _use(self, fd: int) -> None:
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)  # a forked child closes its own copy
        self._close.atexit = False

    def own(self) -> None:
        """See RankOwned."""
        with self._locked():
            pass

    def _separate(self) -> None:
        fd = anonymous_file("streaming-epochs", _FILE_BYTES)
        self._inherited.write_to(fd)
        self._close()
        self._use(fd)

    # --- for the rank process

    def begin(self, loader: Loader, *, n_epoch_samples: int, batch_size: int) -> StartedEpoch:
        """Begin the next epoch for a loader whose workers have not started yet; they will join it."""
        with self._locked() as file:
            return file.append(loader, n_epoch_samples, batch_size, is_counted=True)

    def set_next(self, epoch: int) -> None:
        """Have `epoch` begin next, from its first sample. Forgets a cursor that was loaded."""
        with self._locked() as file:
            header = file.header
            file.header = _Header(header.n_started, epoch, *header.loaded)

    def resume_at(self, epoch: int, consumed: int, loaded: LoadedOrder = _OWN_ORDER) -> None:
        """Have `epoch` begin next with `consumed` samples spent; if these are all, the epoch after it.

        `loaded`: what the state decides of the order.
        """
        with self._locked() as file:
            header = file.header
            file.header = _Header(header.n_started, header.next_epoch, *loaded, True, epoch, consumed)

    @property
    def has_begun(self) -> bool:
        """Whether an epoch has begun or a state was loaded, so that the order can change no more."""
        with self._locked() as file:
            return bool(file.header.n_started or file.header.has_cursor)

    @property
    def next_epoch(self) -> int:
        """The epoch that begins next if no cursor was loaded."""
        with self._locked() as file:
            return file.header.next_epoch

    def progress(self) -> EpochProgress:
        """Where a checkpoint taken now stands; epoch -1 before the first."""
        with self._locked() as file:
            header = file.header
            if header.has_cursor:
                return EpochProgress(header.cursor_epoch, header.consumed, is_pending=True)
            if header.next_epoch == 0:
                return EpochProgress(-1, 0, is_pending=True)
            if header.n_started:
                last = file.entry(header.n_started - 1)
                if last.epoch == header.next_epoch - 1:
                    return EpochProgress(last.epoch, last.start, is_pending=False)
            return EpochProgress(header.next_epoch, 0, is_pending=True)  # set by `set_next`

    # --- for workers

    def join(self, loader: Loader, *, n_epoch_samples: int, batch_size: int) -> StartedEpoch:
        """Join the epoch that this iteration is: one that its loader has started already, else the next.

        `batch_size`: for an epoch that is started now. Raises OptionError if the loader has too many workers.
        """
        if loader.worker >= _MAX_WORKERS:
            raise OptionError(f"a loader can have at most {_MAX_WORKERS} workers, this is number {loader.worker}")
        with self._locked() as file:
            for number in file.numbers():
                entry = file.entry(number)
                if entry.key == loader.key and not entry.is_abandoned and not file.process(number, loader.worker):
                    file.mark(number, loader.worker)
                    return entry.started(number)
            started = file.append(loader, n_epoch_samples, batch_size, is_counted=False)
            file.mark(started.number, loader.worker)
            return started

    def close_abandoned(self) -> None:
        """Close epochs that some workers never joined and others have left: their loader was dropped early.

        Else a new loader iteration with the same base seed (`torch.manual_seed` before every epoch) would send some
        of its workers into the old epoch.
        """
        with self._locked() as file:
            for number in file.numbers():
                entry = file.entry(number)
                joined = [process for process in file.processes(number, entry.n_workers) if process]
                if not entry.is_abandoned and len(joined) < entry.n_workers and any(map(_is_gone, joined)):
                    file.set_entry(number, entry._replace(is_abandoned=True))

    # --- the file

    @contextmanager
    def _locked(self) -> Iterator[_RingFile]:
        # Two locks: the kernel's belongs to the process and does not keep its threads apart.
        with self._lock:
            if self._is_closed:
                raise ClosedError("the dataset is closed")
            self._own()
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                yield _RingFile(self._fd)
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        """The descriptor, if a worker process is being started; elsewhere the pickle makes a new, empty ring."""
        if context.get_spawning_popen() is None:
            return EpochRing, ()
        self.close_abandoned()
        return _handed_ring, (reduction.DupFd(self._fd), os.getpid(), _Position.of(self._fd))

    def close(self) -> None:
        """Give the descriptor back."""
        self._is_closed = True  # its number may be another file's from now on
        self._close()


class _Header(NamedTuple):
    """The ring as a whole: how many epochs have started so far, which comes next, and the cursor that was loaded."""

    n_started: int
    next_epoch: int
    has_loaded: bool = False
    seed: int = 0
    n_canonical_nodes: int = 0
    block_size: int = 0
    has_cursor: bool = False
    cursor_epoch: int = 0
    consumed: int = 0

    @property
    def loaded(self) -> LoadedOrder:
        return LoadedOrder(bool(self.has_loaded), self.seed, self.n_canonical_nodes, self.block_size)


class _Entry(NamedTuple):
    """An epoch that has started, and its loader."""

    key: int
    epoch: int
    start: int
    batch_size: int
    n_workers: int
    is_counted: bool
    has_loaded: bool
    seed: int
    n_canonical_nodes: int
    block_size: int
    is_abandoned: bool = False

    def started(self, number: int) -> StartedEpoch:
        loaded = LoadedOrder(bool(self.has_loaded), self.seed, self.n_canonical_nodes, self.block_size)
        return StartedEpoch(self.epoch, self.start, self.batch_size, bool(self.is_counted), number, loaded)


class _RingFile:
    """The content of the file while it is locked."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def header(self) -> _Header:
        return _Header(*_HEADER.unpack(os.pread(self._fd, _HEADER.size, 0)))

    @header.setter
    def header(self, header: _Header) -> None:
        os.pwrite(self._fd, _HEADER.pack(*header), 0)

    def numbers(self) -> range:
        """The numbers of the entries still held, oldest first."""
        n_started = self.header.n_started
        return range(max(0, n_started - _N_ENTRIES), n_started)

    @staticmethod
    def _at(number: int) -> int:
        return _HEADER.size + number % _N_ENTRIES * _ENTRY_BYTES

    def entry(self, number: int) -> _Entry:
        return _Entry(*_ENTRY.unpack(os.pread(self._fd, _ENTRY.size, self._at(number))))

    def set_entry(self, number: int, entry: _Entry) -> None:
        os.pwrite(self._fd, _ENTRY.pack(*entry), self._at(number))

    def processes(self, number: int, n_workers: int) -> tuple[int, ...]:
        """For each worker number below `n_workers`, the process that has joined under it, or 0."""
        block = os.pread(self._fd, 4 * n_workers, self._at(number) + _ENTRY.size)
        return struct.unpack(f"<{n_workers}i", block)

    def process(self, number: int, worker: int) -> int:
        """The process that has joined as this worker, or 0."""
        return self.processes(number, worker + 1)[worker]

    def mark(self, number: int, worker: int) -> None:
        """Write down that this process has joined as this worker."""
        os.pwrite(self._fd, struct.pack("<i", os.getpid()), self._at(number) + _ENTRY.size + 4 * worker)

    def append(self, loader: Loader, n_epoch_samples: int, batch_size: int, *, is_counted: bool) -> StartedEpoch:
        """Start the next epoch."""
        header = self.header
        cursor = Cursor(header.next_epoch, 0)
        if header.has_cursor:
            cursor = Cursor(header.cursor_epoch, header.consumed).normalised(n_epoch_samples)
        entry = _Entry(
            loader.key, cursor.epoch, cursor.consumed, batch_size, loader.n_workers, is_counted, *header.loaded
        )
        os.pwrite(self._fd, _ENTRY.pack(*entry) + bytes(4 * _MAX_WORKERS), self._at(header.n_started))
        # Last, so that a process that is killed here has started nothing.
        self.header = _Header(header.n_started + 1, cursor.epoch + 1, *header.loaded)
        return entry.started(header.n_started)


class _Position(NamedTuple):
    """Where a ring stands: what another rank process needs in order to go on from there."""

    header: _Header
    last: _Entry | None
    """The epoch that started last."""

    @classmethod
    def of(cls, fd: int) -> _Position:
        """The position of the ring in a file."""
        file = _RingFile(fd)
        header = file.header
        return cls(header, file.entry(header.n_started - 1) if header.n_started else None)

    def write_to(self, fd: int) -> None:
        """Write it to an empty file."""
        file = _RingFile(fd)
        file.header = self.header
        if self.last is not None:  # nobody is to join it here
            file.set_entry(self.header.n_started - 1, self.last._replace(is_abandoned=True))


_rings: weakref.WeakSet[EpochRing] = weakref.WeakSet()


def _before_fork() -> None:
    """Close abandoned epochs, and note for the child where rings stand, since this process may go on at once."""
    for ring in members(_rings):
        with suppress(OSError, ClosedError):
            ring.close_abandoned()
            ring._inherited = _Position.of(ring._fd)


os.register_at_fork(before=_before_fork)


def _handed_ring(handed: Any, process: int, position: _Position) -> EpochRing:
    """In a started process: the ring of the process that started it."""
    ring = EpochRing.__new__(EpochRing)
    ring._adopt(handed.detach(), position)
    ring._inherited_from(process)
    return ring


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
