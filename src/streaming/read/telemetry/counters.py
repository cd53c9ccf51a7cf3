"""What a rank and its loader workers have done and waited for, counted in one location.

The rank process owns one file without a name, which its workers inherit or are handed, as they do the ring of epochs.
Each process writes a slot of its own and nobody else's, so counting takes no lock between processes. A slot belongs to
the process that holds the kernel's lock on one byte of the file; when it dies, its counts stay, and the next process
that needs a slot goes on counting there.

Nothing is counted per sample: a reader looks at its clocks at the end of a segment, where it plans the next one.
"""

from __future__ import annotations

import enum
import fcntl
import itertools
import os
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import context, reduction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ClosedError
from streaming.fetch.wire import Reason
from streaming.fork_safety import ForkSafeLock
from streaming.read.shared.anonymous_file import anonymous_file


class Count(enum.IntEnum):
    """What is counted, and its location in a slot. `_S`: seconds."""

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
    STEP_S = 18  # the shortest time that it took from one batch to asking for the next; since the start, of no epoch


RANGED: Final = {
    Reason.RANDOM: Count.RANDOM,
    Reason.AHEAD: Count.AHEAD,
    Reason.FEW: Count.FEW,
    Reason.NO_ROOM: Count.NO_ROOM,
}
"""Where samples are counted that came without their shard."""

_N_COUNTS: Final = len(Count)
_NUMBER, _EPOCH, _FIRST = 0, 1, 2  # words of a slot: the epoch's number in the ring plus 1, the epoch, then counts
_WORD_BYTES: Final = 8


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


class SharedCounters:
    """Counters of one dataset in one rank process and its workers. Owns one descriptor; safe between threads."""

    def __init__(self, n_streams: int) -> None:
        self._adopt(anonymous_file("streaming-counters"), n_streams)

    def _adopt(self, fd: int, n_streams: int) -> None:
        self._fd, self.n_streams = fd, n_streams
        self._n_counted = _N_COUNTS + n_streams
        self._n_words = _FIRST + 2 * self._n_counted  # what was counted, and how much of it before the slot's epoch
        self._process = 0  # whose slot it is that we know: a forked child takes another
        self._slot = 0
        self._words = np.zeros(self._n_words)
        self._lock = ForkSafeLock()
        self._here = threading.local()
        self._is_closed = False
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False

    # --- counting

    def add(self, amounts: Mapping[Count, float], samples: NDArray[np.int64] | None = None) -> None:
        """Count more. `samples` read of each stream: int64 (stream,)."""
        with self._lock:
            if self._is_closed:
                return  # a reader that ends after its dataset
            self._claim()
            for count, amount in amounts.items():
                self._words[_FIRST + count] += amount
            if samples is not None:
                self._words[_FIRST + _N_COUNTS : _FIRST + self._n_counted] += samples
            self._write(_FIRST + self._n_counted)

    def waited(self, count: Count, seconds: float) -> None:
        """This thread waited for the fetcher."""
        self._here.waited_s = self.waited_here_s + seconds
        self.add({count: seconds})

    @property
    def waited_here_s(self) -> float:
        """How long this thread has waited for the fetcher so far."""
        seconds: float = getattr(self._here, "waited_s", 0.0)
        return seconds

    def begin(self, number: int, epoch: int) -> None:
        """What this process counts from now on belongs to this epoch; `number`: how many had started before it."""
        with self._lock:
            if self._is_closed:
                return
            self._claim()
            words, n = self._words, self._n_counted
            if words[_NUMBER] <= number:  # else a later one has started here
                words[_NUMBER], words[_EPOCH] = number + 1, epoch
                words[_FIRST + n :] = words[_FIRST : _FIRST + n]
                self._write(self._n_words)

    # --- asking

    def reading(self) -> Reading:
        """All that was counted since the dataset was made."""
        return self._reading(self._slots()[:, _FIRST : _FIRST + self._n_counted])

    def epoch_reading(self, number: int | None = None) -> tuple[int | None, Reading]:
        """An epoch that was started, by its number in the ring, and what was counted of it. None: the latest, if any.

        Where two go on at the same time in one process, what it counts is the later one's.
        """
        slots, n = self._slots(), self._n_counted
        latest = int(slots[:, _NUMBER].max(initial=0)) if number is None else number + 1
        of_it = slots[(slots[:, _NUMBER] == latest) & (latest > 0)]
        counted = of_it[:, _FIRST : _FIRST + n] - of_it[:, _FIRST + n :]
        return (int(of_it[0, _EPOCH]) if len(of_it) else None), self._reading(counted)

    def _reading(self, counted: NDArray[np.float64]) -> Reading:
        total = counted.sum(axis=0)
        return Reading(total[:_N_COUNTS], total[_N_COUNTS:])

    # --- the file

    def _slots(self) -> NDArray[np.float64]:
        """All slots, float64 (slot, word)."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("the dataset is closed")
            content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        n_slots = len(content) // (_WORD_BYTES * self._n_words)
        return np.frombuffer(content, np.float64, n_slots * self._n_words).reshape(n_slots, self._n_words)

    def _claim(self) -> None:
        """Take a slot, once in a process, that no living process has."""
        process = os.getpid()
        if self._process == process:
            return
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

    def _at(self, slot: int) -> int:
        return slot * self._n_words * _WORD_BYTES

    def _write(self, n_words: int) -> None:
        os.pwrite(self._fd, self._words[:n_words].tobytes(), self._at(self._slot))

    # --- life

    def __reduce__(self) -> tuple[Any, ...]:
        """The descriptor, if a worker process is being started; a pickle for anywhere else is a counters of its own."""
        if context.get_spawning_popen() is None or self._is_closed:
            return SharedCounters, (self.n_streams,)
        return _handed_meter, (reduction.DupFd(self._fd), self.n_streams)

    def close(self) -> None:
        """Give the descriptor back. What is counted afterwards is lost; asking raises ClosedError."""
        with self._lock:
            self._is_closed = True  # its number may be another file's from now on
            self._close()


def _handed_meter(handed: Any, n_streams: int) -> SharedCounters:
    """In a started worker: the counters of the process that started it."""
    counters = SharedCounters.__new__(SharedCounters)
    counters._adopt(handed.detach(), n_streams)
    return counters


class Stopwatch:
    """What one reader does from the end of one segment to the end of the next. For one thread."""

    def __init__(self, counters: SharedCounters, stream_of_shard: NDArray[np.int64]) -> None:
        self._counters, self._stream_of_shard = counters, stream_of_shard
        self._now()

    def _now(self) -> tuple[float, float, float]:
        """The clocks: all time, time running, time waiting for the fetcher."""
        self._clocks = time.monotonic(), time.thread_time(), self._counters.waited_here_s
        return self._clocks

    def ended(self, shards: NDArray[np.int64]) -> None:
        """Samples of these shards have been read, int64 (sample,)."""
        before, now = self._clocks, self._now()
        passed_s, cpu_s, waited_s = (max(0.0, clock - earlier) for clock, earlier in zip(now, before))
        samples = np.bincount(self._stream_of_shard[shards], minlength=self._counters.n_streams)
        self._counters.add({Count.CPU_S: cpu_s, Count.IDLE_S: max(0.0, passed_s - cpu_s - waited_s)}, samples)
