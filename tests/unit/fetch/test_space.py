"""Space for files, as readers and the disk say: which files count, for whom, and when."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from streaming.cache.files import Temporaries
from streaming.cache.shelf import Lying
from streaming.fetch.decide.space import SpaceBudget, SpacePlan
from streaming.fetch.decide.transfers import FetchLimits, Transfer, TransferLedger
from streaming.fetch.transfer.cache_scan import CacheScan
from streaming.fetch.transfer.engine import caches_of
from streaming.fetch.wire.protocol import FileRequest, Hello
from support.fetching import stream_config


class World:
    """A ledger of transfers and its space budget, and jobs that come and go."""

    def __init__(self, folder: str = "/cache") -> None:
        self.ledger: TransferLedger[Transfer] = TransferLedger(FetchLimits(), 0.0)
        self.room = SpaceBudget(self.ledger)
        self.config = stream_config("s3://bkt/d", folder)

    def task(self, name: str, n_bytes: int = 10, folder: str | None = None) -> Transfer:
        config = self.config if folder is None else replace(self.config, local=folder)
        return Transfer.of(FileRequest(0, name, n_bytes), config)

    def come(self, job: str, limit: int, folder: str | None = None) -> None:
        config = self.config if folder is None else replace(self.config, local=folder)
        self.ledger.opened(job)
        if self.room.admit(job, caches_of(Hello(2, "", job, (config,), limit)), 0.0):
            self.room.limit(job)

    def go(self, job: str) -> None:
        self.ledger.closed(job, 0.0)
        for gone in self.ledger.passed(100.0):
            self.room.lift(gone, 0.0)

    def announce(self, *tasks: Transfer, job: str = "job", held: tuple[Transfer, ...] = ()) -> SpacePlan:
        self.ledger.announced(job, "r", [(task, False) for task in tasks], 0.0, held=[task.key for task in held])
        return self.room.begin(0.0)

    def end(self, *tasks: Transfer) -> None:
        for task in tasks:
            self.ledger.finished(task.key, 0.0)
            self.room.ended(task, 0.0, n_came=task.file.n_bytes)


def test_what_comes_without_a_limit_is_not_remembered() -> None:
    """A fetcher that brings a million files must not grow with each."""
    world = World()
    world.come("job", -1)
    tasks = [world.task(str(i)) for i in range(5)]
    assert world.announce(*tasks).transfers == tasks
    world.end(*tasks)
    assert world.room.n_bytes == 0
    assert not world.room.is_limited


def test_what_moves_when_a_limit_comes_counts() -> None:
    """It was begun without one."""
    world = World()
    world.come("free", -1)
    moving = world.task("0")
    assert world.announce(moving, job="free").transfers == [moving]
    world.come("job", 15)
    assert world.room.n_bytes == 10
    assert world.announce(world.task("1")).transfers == []
    world.end(moving)
    assert world.room.n_bytes == 10


def test_only_what_lies_below_the_roots_of_limited_jobs_counts() -> None:
    """A job without a limit may fill another disk."""
    world = World()
    world.come("job", 10)
    world.come("free", -1, "/other")
    others = [world.task(str(i), folder="/other") for i in range(3)]
    assert world.announce(*others, job="free").transfers == others
    world.end(*others)
    assert world.room.n_bytes == 0
    assert world.room.roots == ["/cache"]


def test_when_the_last_limit_goes_nothing_counts() -> None:
    """Until the next comes; the smallest of several holds."""
    world = World()
    world.come("large", 100)
    world.come("small", 10)
    tasks = [world.task(str(i)) for i in range(2)]
    assert world.announce(*tasks, job="large").transfers == tasks[:1]
    world.go("small")
    assert world.room.begin(0.0).transfers == tasks[1:]
    world.end(*tasks)
    assert world.room.n_bytes == 20
    world.go("large")
    assert (world.room.n_bytes, world.room.is_limited) == (0, False)


def test_a_limit_is_not_in_force_before_somebody_has_looked() -> None:
    """Every connection of its job is told to look, until one has."""
    world = World()
    tenant = caches_of(Hello(2, "", "job", (world.config,), 10))
    assert [world.room.admit("job", tenant, 0.0) for _ in range(2)] == [True, True]
    world.room.limit("job")
    assert not world.room.admit("job", tenant, 0.0)


def test_what_is_evicted_comes_again_for_the_lists_that_have_it() -> None:
    """As soon as there is room."""
    world = World()
    world.come("job", 20)
    near, far, urgent = (world.task(name) for name in ("near", "far", "urgent"))
    assert world.announce(near, far).transfers == [near, far]
    world.end(near, far)
    world.ledger.subscribe("waiter", urgent, 0.0)
    begun = world.room.begin(0.0)
    assert (begun.transfers, begun.leaving) == ([urgent], [far.path])
    world.room.gone(begun)
    world.end(urgent)
    world.ledger.unsubscribe("waiter")
    begun = world.room.begin(0.0)
    assert (begun.transfers, begun.leaving) == ([far], [urgent.path])


def test_what_is_announced_takes_the_room_only_of_what_is_needed_much_later() -> None:
    """Three times as far away; else a small cache would fetch everything for every use."""
    world = World()
    world.come("job", 30)
    there = [world.task(f"there {i}") for i in range(3)]
    world.announce(*there)
    world.end(*there)
    others = [world.task(f"other {i}") for i in range(3)]
    listed = [others[0], there[0], others[1], others[2], there[1], there[2]]
    world.ledger.announced("job", "r", [(task, task in there) for task in listed], 0.0)
    begun = world.room.begin(0.0)
    assert (begun.transfers, begun.leaving) == ([others[0]], [there[2].path])


def test_a_full_disk_spares_what_running_jobs_may_need() -> None:
    """Without limits all of their folders, since they do not say what they need; what is left of others goes."""
    world = World()
    world.come("free", -1, "/used")
    found = {
        "/used/a": Lying(10, 0.0, may_go=True),
        "/old/b": Lying(10, 5.0, may_go=True),
        "/old/c": Lying(10, 1.0, may_go=True),
        "/old/user": Lying(10, 0.0, may_go=False),
    }
    assert world.room.free(world.task("new", 10, "/used"), found, 9.0) == ["/old/c"]
    assert world.room.free(world.task("new", 99, "/used"), found, 9.0) == ["/old/c", "/old/b"]


def test_a_look_tells_temporaries_apart(tmp_path: Path) -> None:
    """Ours were promised room; those of a dead writer go; others' are somebody's, and count."""
    world = World(str(tmp_path))
    temporaries = Temporaries(umask=0o022)
    watch = CacheScan(world.room, threading.Lock(), temporaries)
    world.come("job", 1000)
    code = (
        "import sys, os; from streaming.cache.files import Temporaries\n"
        "with Temporaries(umask=0).begin(sys.argv[1], 'b', n_bytes=30):\n"
        "    print('written', flush=True)\n"
        "    input()\n"
        "    os._exit(9)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        temporaries.begin(str(tmp_path), "a", n_bytes=20),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"written\n"
        (tmp_path / "user").write_bytes(bytes(5))
        watch.run()
        assert world.room.n_bytes == 35
        other.stdin.write(b"\n")
        other.stdin.close()
        assert other.wait(60) == 9
        watch.run()
        assert world.room.n_bytes == 5
    assert os.listdir(tmp_path) == ["user"]


def test_looks_are_due_when_something_counts_and_not_too_often(tmp_path: Path) -> None:
    """Never without a limit."""
    world = World(str(tmp_path))
    watch = CacheScan(world.room, threading.Lock(), Temporaries(umask=0o022))
    assert not watch.is_due()
    world.come("job", 10)
    assert watch.is_due()
    watch.run()
    assert not watch.is_due()


def test_one_look_is_enough_for_all_who_come_at_once(tmp_path: Path) -> None:
    """The next connection of a job whose limit holds needs none, nor one that had to wait for the first."""
    world = World(str(tmp_path))
    watch = CacheScan(world.room, threading.Lock(), Temporaries(umask=0o022))
    world.come("job", 100)
    (tmp_path / "unseen").write_bytes(bytes(5))
    watch.run("job")
    assert world.room.n_bytes == 0
    watch.run("another job")
    assert world.room.n_bytes == 5


@pytest.mark.parametrize("keep_zip", [False, True])
def test_a_file_counts_in_each_form_that_stays(keep_zip: bool) -> None:
    """While it comes, and afterwards."""
    world = World()
    world.config = replace(world.config, keep_zip=keep_zip)
    world.come("job", 100)
    task = Transfer.of(FileRequest(0, "a", 10, "a.z", 7, "zstd"), world.config)
    n_bytes = 17 if keep_zip else 10
    assert world.announce(task).transfers == [task]
    assert world.room.n_bytes == n_bytes
    world.end(task)
    assert world.room.n_bytes == n_bytes


def test_a_file_of_unknown_size_counts_when_it_has_come() -> None:
    """And stays: an index cannot be told from another file of the user."""
    world = World()
    world.come("job", 15)
    index = world.task("index.json", -1)
    assert world.announce(index).transfers == [index]
    world.ledger.finished(index.key, 0.0)
    world.room.ended(index, 0.0, n_came=12)
    assert world.room.n_bytes == 12
    world.ledger.subscribe("waiter", world.task("a"), 0.0)
    assert world.room.begin(0.0).without_room == [(world.task("a"), ["waiter"])]
    assert "12 of 15 bytes are taken, 12 of them in files that are no copies" in world.room.why_full()
