"""Which epoch an iteration is: one answer for all workers of a loader, whatever their timing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import OptionError
from streaming.read.shared.epoch_ring import EpochRing, Loader, StartedEpoch
from support.loader_workers import become_loader_worker

N = 100  # samples in an epoch


def _join(ring: EpochRing, key: int, worker: int = 0, n_workers: int = 1) -> StartedEpoch:
    return ring.join(Loader(key, worker, n_workers), n_epoch_samples=N, batch_size=2)


def _joined(ring: EpochRing, key: int, worker: int, n_workers: int) -> int:
    return _join(ring, key, worker, n_workers).epoch


class Worker:
    """A worker process that joins its loader's epoch when it starts, and lives until it is stopped."""

    def __init__(self, ring: EpochRing, key: int, worker: int, n_workers: int, method: str = "fork") -> None:
        context: Any = multiprocessing.get_context(method)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_worker, args=(theirs, ring, key, worker, n_workers), daemon=True)
        self._process.start()
        theirs.close()
        self.epoch: int = self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send("stop")
        self._process.join(60)
        assert self._process.exitcode == 0


def _worker(pipe: Any, ring: EpochRing, *loader: int) -> None:
    become_loader_worker()
    pipe.send(_joined(ring, *loader))
    pipe.recv()


@given(order=st.permutations([(epoch, worker) for epoch in range(4) for worker in range(3)]))
def test_persistent_workers_agree_in_any_order(order: list[tuple[int, int]]) -> None:
    """A worker's k-th iteration is the loader's k-th epoch, whoever comes first and however far others are ahead."""
    ring = EpochRing()
    counts = [0, 0, 0]
    seen: list[list[int]] = [[], [], []]
    for _, worker in order:
        seen[worker].append(_joined(ring, 7, worker, 3))
        counts[worker] += 1
    assert seen == [[0, 1, 2, 3]] * 3
    ring.close()


def test_a_loader_without_workers_begins_an_epoch_each_time() -> None:
    """A key that is not used again joins nothing."""
    ring = EpochRing()
    assert [_joined(ring, key, 0, 1) for key in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_share_the_ring_of_the_process_that_started_them(method: str) -> None:
    """By inheritance or by hand-over; new processes with the same key and number are the loader's next epoch."""
    ring = EpochRing()
    for epoch, order in ((0, (0, 1)), (1, (1, 0))):
        workers = [Worker(ring, 7, worker, 2, method) for worker in order]
        assert [worker.epoch for worker in workers] == [epoch, epoch]
        for worker in workers:
            worker.stop()
    assert ring.next_epoch == 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_epoch_that_some_workers_never_joined_is_not_joined_by_the_next_loader(method: str) -> None:
    """An iteration is left before worker 1 joins; the next one has the same base seed: its workers are in epoch 1."""
    ring = EpochRing()
    early = Worker(ring, 7, 0, 2, method)
    assert early.epoch == 0
    early.stop()
    workers = [Worker(ring, 7, worker, 2, method) for worker in (1, 0)]
    assert [worker.epoch for worker in workers] == [1, 1]
    for worker in workers:
        worker.stop()


def test_a_ring_pickled_for_anything_but_a_worker_is_a_new_one() -> None:
    """The descriptor is in no pickle that could be kept or sent elsewhere."""
    ring = EpochRing()
    _joined(ring, 7, 0, 1)
    copy = pickle.loads(pickle.dumps(ring))
    assert copy.next_epoch == 0
    assert ring.next_epoch == 1


def test_a_loaded_cursor_is_used_once_and_reported_until_then() -> None:
    """The next epoch begins at the cursor, the one after it at 0; until then the progress is what was loaded."""
    ring = EpochRing()
    ring.resume_at(5, 30)
    progress = ring.progress()
    assert (progress.epoch, progress.start, progress.is_pending) == (5, 30, True)
    first = _join(ring, 1)
    assert (first.epoch, first.start) == (5, 30)
    assert not ring.progress().is_pending
    second = _join(ring, 2)
    assert (second.epoch, second.start) == (6, 0)


@pytest.mark.parametrize(
    ("cursor", "started"), [((3, N), (4, 0)), ((3, N + 7), (4, 0)), ((-1, 0), (0, 0)), ((3, 0), (3, 0))]
)
def test_a_cursor_at_the_end_begins_the_next_epoch(cursor: tuple[int, int], started: tuple[int, int]) -> None:
    """At or beyond the end (padding included), and before the first epoch: no empty epoch begins."""
    ring = EpochRing()
    ring.resume_at(*cursor)
    found = _join(ring, 1)
    assert (found.epoch, found.start) == started


def test_set_next_fixes_the_next_epoch_and_forgets_a_cursor() -> None:
    """`set_epoch` restarts or skips epochs; the ones after it count on from there."""
    ring = EpochRing()
    ring.resume_at(5, 30)
    ring.set_next(2)
    assert [_joined(ring, key, 0, 1) for key in (1, 2)] == [2, 3]


def test_begin_hands_batch_size_and_start_to_workers_that_join_later() -> None:
    """Our loader begins in the rank process; each iteration's workers find their own epoch by its key."""
    ring = EpochRing()
    ring.begin(Loader(10, 0, 2), n_epoch_samples=N, batch_size=4)
    ring.begin(Loader(11, 0, 2), n_epoch_samples=N, batch_size=8)
    found = [_join(ring, key, worker, 2) for key in (11, 10) for worker in (1, 0)]
    assert [(started.epoch, started.batch_size) for started in found] == [(1, 8), (1, 8), (0, 4), (0, 4)]
    assert all(started.is_counted for started in found)


def test_workers_of_a_plain_loader_bring_their_own_batch_size() -> None:
    """Nobody has begun their epoch before, and nobody counts what training waits for."""
    ring = EpochRing()
    started = [_join(ring, 7, worker, 2) for worker in (1, 0)]
    assert [(each.epoch, each.batch_size, each.is_counted) for each in started] == [(0, 2, False)] * 2


def test_a_worker_killed_while_it_holds_the_lock_blocks_nobody() -> None:
    """The lock is the kernel's, and ends with its holder."""
    ring = EpochRing()
    child = os.fork()
    if child == 0:
        become_loader_worker()
        with ring._locked():
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert _joined(ring, 1, 0, 1) == 0


def _rank(pipe: Any, ring: EpochRing) -> None:
    pipe.send((ring.progress(), _joined(ring, 1, 0, 1), _joined(ring, 1, 0, 1), ring.next_epoch))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ranks_started_from_it_go_on_with_rings_of_their_own(method: str) -> None:
    """From where it stood when each was started; keys that were used before mean nothing there."""
    ring = EpochRing()
    assert _joined(ring, 1, 0, 1) == 0
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    ranks = [context.Process(target=_rank, args=(theirs, ring)) for _ in range(2)]
    for rank in ranks:
        rank.start()
    assert _joined(ring, 2, 0, 1) == 1
    for rank in ranks:
        progress, *joined, next_epoch = ours.recv()
        assert (progress.epoch, progress.is_pending) == (0, False)
        assert joined == [1, 2]
        assert next_epoch == 3
        rank.join(60)
    assert ring.next_epoch == 2


def test_too_many_workers_are_refused() -> None:
    """The ring has room for 1,024 workers of one loader."""
    with pytest.raises(OptionError, match="1024"):
        _join(EpochRing(), 1, 1024, 1025)


def test_closing_and_dropping_free_the_descriptor() -> None:
    """Neither leaves a descriptor open, or closes one that is not its own."""
    gc.collect()
    n_open = len(os.listdir("/proc/self/fd"))
    rings = [EpochRing() for _ in range(20)]
    for ring in rings[:10]:
        ring.close()
        ring.close()
    del ring, rings
    assert len(os.listdir("/proc/self/fd")) == n_open
