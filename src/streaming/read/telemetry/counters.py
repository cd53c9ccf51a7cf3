"""What a rank and its loader workers have done and waited for, counted in one place.

The rank process owns one anonymous file, which its workers inherit or are handed, like the ring of epochs. Each process
writes only to a slot of its own, so counting takes no lock between processes. A slot belongs to the process that holds
the kernel's lock on one byte of the file. When that process dies its counts stay, and the next process that needs a
slot goes on counting there.

Nothing is counted per sample: a reader looks at its clocks at the end of a segment, where it plans the next one.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import context, reduction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ClosedError
from streaming.fetch.wire import INDEXES, Announce, ReadObject, ReadRanges, Reason, Request, Wait
from streaming.fork_safety import ForkSafeLock
from streaming.formats.names import INDEX_NAME
from streaming.read.shared.rank_ownership import RankOwned, anonymous_file


class Count(enum.IntEnum):
    """What is counted, and its index in a slot. `_S`: seconds."""

    INDEX_S = 0  # a process waited for an index
    SHARDS_S = 1  # for a shard
    RANGES_S = 2  # for bytes without their shard
    FETCHER_S = 3  # for the fetcher to take up a list, or to start
    CPU_S = 4  # a reading thread was running
    IDLE_S = 5  # it neither ran nor waited for the fetcher
    AT_HAND = 6  # shards that were on disk when they were opened
    AWAITED = 7  # shards that were not
    RANDOM = 8  # samples that came by range, by reason
    AHEAD = 9
    FEW = 10
    NO_ROOM = 11
    LOOKS = 12  # looks at how far read-ahead is,
    ANNOUNCED = 13  # shards announced then, summed over the looks,
    ON_DISK = 14  # and those of them on disk
    BATCHES = 15  # handed out by the loader
    WAITED_S = 16  # training waited for a batch
    WORKED_S = 17  # training did something else


RANGED: Final = {
    Reason.RANDOM: Count.RANDOM,
    Reason.AHEAD: Count.AHEAD,
    Reason.FEW: Count.FEW,
    Reason.NO_ROOM: Count.NO_ROOM,
}
"""Where samples are counted that came without their shard."""

_N_COUNTS: Final = len(Count)
# The words of a slot: how many epochs of the ring had started, its own included, when the slot's epoch began (0: none
# has); that epoch; the shortest step in seconds (0: none was taken); then all counts, and what they were before it.
_N_STARTED, _EPOCH, _STEP, _FIRST = 0, 1, 2, 3
_WORD_BYTES: Final = 8
_MIN_STEP_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Reading:
    """Counts since the dataset was made, or their growth over a time.

    `counts`: float64 (count,), exact up to 2⁵³; `samples` read of each stream: float64 (stream,).
    """

    counts: NDArray[np.float64]
    samples: NDArray[np.float64]

    def __getitem__(self, count: Count) -> float:
        return float(self.counts[count])

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(self.counts - earlier.counts, self.samples - earlier.samples)

    def __add__(self, other: Reading) -> Reading:
        return Reading(self.counts + other.counts, self.samples + other.samples)


class SharedCounters(RankOwned):
    """Counters of one dataset in one rank process and its workers. Owns one descriptor; safe between threads.

    What is counted after `close` is lost, since a reader may end after its dataset; reading then raises ClosedError.
    """

    def __init__(self, n_streams: int) -> None:
        self._adopt(anonymous_file("streaming-counters"), n_streams)
        self._belongs_to_this_process()

    def _adopt(self, fd: int, n_streams: int) -> None:
        self.n_streams = n_streams
        self._n_counted = _N_COUNTS + n_streams
        self._n_words = _FIRST + 2 * self._n_counted
        self._lock = ForkSafeLock()
        self._here = threading.local()
        self._is_closed = False
        self._use(fd)

    def _use(self, fd: int) -> None:
        self._fd = fd
        self._process = 0  # the process that has claimed `_slot`; a forked child claims another
        self._slot = 0
        self._words = np.zeros(self._n_words)
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False

    def own(self) -> None:
        """See RankOwned."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("the dataset is closed")
            self._own()

    def _separate(self) -> None:
        fd = anonymous_file("streaming-counters")
        self._close()
        self._use(fd)

    # --- counting

    def add(self, amounts: Mapping[Count, float], samples: NDArray[np.int64] | None = None) -> None:
        """Count these amounts, and `samples` read of each stream, int64 (stream,)."""
        with self._lock:
            if self._claim():
                for count, amount in amounts.items():
                    self._words[_FIRST + count] += amount
                if samples is not None:
                    self._words[_FIRST + _N_COUNTS : _FIRST + self._n_counted] += samples
                self._write(_FIRST + self._n_counted)

    def add_wait(self, count: Count, seconds: float) -> None:
        """Count that this thread waited for the fetcher."""
        self._here.waited_s = self.waited_here_s + seconds
        self.add({count: seconds})

    @property
    def waited_here_s(self) -> float:
        """How long this thread has waited for the fetcher so far."""
        seconds: float = getattr(self._here, "waited_s", 0.0)
        return seconds

    def add_step(self, seconds: float) -> None:
        """Keep the shortest time that training took from one batch to asking for the next.

        It tells how fast training is: a longer step may have waited for other ranks, and so for their data.
        """
        step_s = max(_MIN_STEP_S, seconds)
        with self._lock:
            if self._claim() and not 0 < self._words[_STEP] <= step_s:
                self._words[_STEP] = step_s
                self._write(_FIRST)

    def begin_epoch(self, number: int, epoch: int) -> None:
        """Count for this epoch from now on in this process. `number`: how many epochs had started before it."""
        with self._lock:
            if self._claim() and self._words[_N_STARTED] <= number:  # else a later one has started here
                words, n = self._words, self._n_counted
                words[_N_STARTED], words[_EPOCH] = number + 1, epoch
                words[_FIRST + n :] = words[_FIRST : _FIRST + n]
                self._write(self._n_words)

    # --- reading

    def reading(self) -> Reading:
        """Everything counted since the dataset was made."""
        return self._total(self._slots()[:, _FIRST : _FIRST + self._n_counted])

    def epoch_reading(self, number: int | None = None) -> tuple[int | None, Reading]:
        """An epoch, and what was counted in it. `number`: how many epochs had started before it; None: the latest.

        The epoch is None if nothing has started. Where two run at the same time in one process, what it counts is
        the later one's.
        """
        slots, n = self._slots(), self._n_counted
        n_started = int(slots[:, _N_STARTED].max(initial=0)) if number is None else number + 1
        of_epoch = slots[(slots[:, _N_STARTED] == n_started) & (n_started > 0)]
        counted = of_epoch[:, _FIRST : _FIRST + n] - of_epoch[:, _FIRST + n :]
        return (int(of_epoch[0, _EPOCH]) if len(of_epoch) else None), self._total(counted)

    def shortest_step_s(self) -> float | None:
        """The shortest step of training over all loaders and epochs; None before the first."""
        steps = self._slots()[:, _STEP]
        return float(steps[steps > 0].min()) if steps.any() else None

    def _total(self, counted: NDArray[np.float64]) -> Reading:
        total = counted.sum(axis=0)
        return Reading(total[:_N_COUNTS], total[_N_COUNTS:])

    # --- the file

    def _slots(self) -> NDArray[np.float64]:
        """All slots, float64 (slot, word)."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("the dataset is closed")
            self._own()
            content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        n_slots = len(content) // (_WORD_BYTES * self._n_words)
        return np.frombuffer(content, np.float64, n_slots * self._n_words).reshape(n_slots, self._n_words)

    def _claim(self) -> bool:
        """Take a slot that no living process has, once in a process. False if the counters are closed."""
        process = os.getpid()
        if self._is_closed or self._process == process:
            return not self._is_closed
        self._own()
        for slot in itertools.count():
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)  # goes with the process
                break
            except (BlockingIOError, PermissionError):
                continue
        self._process, self._slot = process, slot
        self._words = np.zeros(self._n_words)
        before = os.pread(self._fd, self._n_words * _WORD_BYTES, self._at(slot))
        if len(before) == self._n_words * _WORD_BYTES:
            self._words[:] = np.frombuffer(before, np.float64)
        self._write(self._n_words)
        return True

    def _at(self, slot: int) -> int:
        return slot * self._n_words * _WORD_BYTES

    def _write(self, n_words: int) -> None:
        os.pwrite(self._fd, self._words[:n_words].tobytes(), self._at(self._slot))

    # --- life

    def __reduce__(self) -> tuple[Any, ...]:
        """The descriptor, if a worker process is being started; elsewhere the pickle makes new, empty counters."""
        if context.get_spawning_popen() is None or self._is_closed:
            return SharedCounters, (self.n_streams,)
        self.own()
        return _handed_counters, (reduction.DupFd(self._fd), os.getpid(), self.n_streams)

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            self._is_closed = True  # its number may be another file's from now on
            self._close()


def _handed_counters(handed: Any, process: int, n_streams: int) -> SharedCounters:
    """In a started process: the counters of the process that started it."""
    counters = SharedCounters.__new__(SharedCounters)
    counters._adopt(handed.detach(), n_streams)
    counters._inherited_from(process)
    return counters


class Stopwatch:
    """Measures what one reader does from the end of one segment to the end of the next. For one thread."""

    def __init__(self, counters: SharedCounters, stream_of_shard: NDArray[np.int64]) -> None:
        """Start now. `stream_of_shard`: int64 (shard,)."""
        self._counters, self._stream_of_shard = counters, stream_of_shard
        self._clocks = self._read_clocks()

    def _read_clocks(self) -> tuple[float, float, float]:
        """Seconds of all time, of this thread running, and of it waiting for the fetcher."""
        return time.monotonic(), time.thread_time(), self._counters.waited_here_s

    def ended(self, shards: NDArray[np.int64]) -> None:
        """Count the time since the last call, and the samples read in it by their shards, int64 (sample,)."""
        before, self._clocks = self._clocks, self._read_clocks()
        passed_s, cpu_s, waited_s = (max(0.0, now - then) for now, then in zip(self._clocks, before))
        samples = np.bincount(self._stream_of_shard[shards], minlength=self._counters.n_streams)
        self._counters.add({Count.CPU_S: cpu_s, Count.IDLE_S: max(0.0, passed_s - cpu_s - waited_s)}, samples)


class WaitRecorder:
    """The observer of a client, which counts its waits. Safe between threads. Pickles with its counters alone."""

    def __init__(self, counters: SharedCounters) -> None:
        self._counters = counters
        self._here = threading.local()

    @contextlib.contextmanager
    def heard_by(self, listener: Callable[[bool], None]) -> Iterator[None]:
        """In the block, call `listener(is_pending)` about once a second of this thread's waits, and after each."""
        self._here.listener = listener
        try:
            yield
        finally:
            self._here.listener = None

    def pending(self) -> None:
        """See WaitObserver."""
        self._call_listener(is_pending=True)

    def ended(self, request: Request, waited_s: float) -> None:
        """See WaitObserver."""
        self._counters.add_wait(_count_of(request), waited_s)
        self._call_listener(is_pending=False)

    def _call_listener(self, *, is_pending: bool) -> None:
        listener: Callable[[bool], None] | None = getattr(self._here, "listener", None)
        if listener is not None:
            listener(is_pending)

    def __reduce__(self) -> tuple[Any, ...]:
        return WaitRecorder, (self._counters,)


def _count_of(request: Request) -> Count:
    if isinstance(request, Wait):
        return Count.INDEX_S if request.file.name == INDEX_NAME else Count.SHARDS_S
    if isinstance(request, ReadRanges):
        return Count.RANGES_S
    # An object is read without the cache if it is an index that has no place there.
    is_index = isinstance(request, ReadObject) or (isinstance(request, Announce) and request.reader == INDEXES)
    return Count.INDEX_S if is_index else Count.FETCHER_S
