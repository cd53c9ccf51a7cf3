"""Killed at any time: the next start just works, and nothing is left behind but whole shards."""

from __future__ import annotations

import os
import random
import re
import signal
import tempfile
import time
from itertools import islice
from pathlib import Path

import psutil
import pytest

from streaming import StreamingDataLoader, StreamingDataset
from support.numbered import checked_ids, write_numbered
from support.ranks import (
    DEADLINE_S,
    Job,
    Layout,
    Report,
    global_batches,
    kill_group,
    make_dataset,
    make_loader,
    run_ranks,
    start_rank,
)

N = 1501


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("crashes") / "source"
    write_numbered(str(folder), N, compression="zstd")
    return str(folder)


def _endless(job: Job, rank: int) -> Report:
    """A rank that trains until it is killed; it says in a file when the first batch has come."""
    loader = make_loader(job, make_dataset(job, rank))
    for _ in range(1000):
        for _ in loader:
            Path(job.cache, f"first-batch-{rank}").touch()
    raise AssertionError("nobody killed this rank")


def _wait_until(condition: object, what: str) -> None:
    assert callable(condition)
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def _fetchers(cache: str) -> list[psutil.Process]:
    commands = [(process, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [
        process
        for process, command in commands
        if "fetch" in " ".join(command) and any(cache in argument for argument in command)
    ]


def _shared_memory() -> set[str]:
    """What lies in shared memory, but for the C library's: a kill in the middle of `sem_open`, by which PyTorch makes
    the queues of its workers, leaves an empty one. Nor what PyTorch names after a process that lives: of other tests.
    """
    names = {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}
    owners = {name: re.match(r"torch_(\d+)_", name) for name in names}
    return {name for name, owner in owners.items() if owner is None or not psutil.pid_exists(int(owner[1]))}


def test_twenty_kills_of_everything(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 ranks x 2 workers and the fetcher, kill -9 at a random moment of the epoch, started again at once, 20 times.

    Then nothing is left in shared memory, in the temporary folder, or in the cache but whole shards and the fetcher's
    small folder, and the next run is the run that was never killed.
    """
    rng = random.Random(20)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    cache = tmp_path / "cache"
    cache.mkdir()
    shared_memory = _shared_memory()
    job = Job(Layout(1, 4, 2), 32, source, str(cache))
    for round_number in range(20):
        ranks = [start_rank(job, rank, _endless) for rank in range(4)]
        if round_number % 3:
            signs = [cache / f"first-batch-{rank}" for rank in range(4)]
            _wait_until(lambda signs=signs: all(sign.exists() for sign in signs), "the first batch after a restart")
        time.sleep(rng.uniform(0.0, 0.15))
        fetchers = _fetchers(str(cache)) if round_number % 2 else []
        for process, _ in ranks:
            kill_group(process)
        for fetcher in fetchers:
            fetcher.kill()
        for process, receive in ranks:
            process.join(60)
            receive.close()
        for sign in cache.glob("first-batch-*"):
            sign.unlink()
        if round_number % 4 == 3:  # so that later kills, too, meet shards in flight
            for shard in (cache / "node0").glob("shard.*"):
                shard.unlink()
    after = run_ranks(job)
    clean = run_ranks(job.then(cache=str(tmp_path / "clean")))
    assert [report.epochs for report in after] == [report.epochs for report in clean]
    _wait_until(lambda: not _fetchers(str(cache)), "the fetcher to end with its last client")
    shards = {f"shard.{number:05}.mds" for number in range(len(list(Path(source).glob("shard.*"))))}
    assert set(os.listdir(cache / "node0")) == {*shards, "index.json", ".streaming", ".streaming-source"}
    assert _shared_memory() <= shared_memory
    assert os.listdir(temporary) == []
    left = [str(path) for path in (cache / "node0" / ".streaming").rglob("*") if path.is_file()]
    assert sum(os.path.getsize(path) for path in left) < 1 << 16
    assert not [path for path in left if path.endswith((".tmp", ".sock"))]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_killing_the_fetcher_costs_a_pause_not_the_epoch(source: str, tmp_path: Path, n_workers: int) -> None:
    """kill -9 for the fetcher, again and again through an epoch of cold shards: every sample comes, in order."""
    cache = tmp_path / "cache"
    clean = StreamingDataLoader(
        StreamingDataset(remote=source, local=str(tmp_path / "clean"), shuffle=True),
        batch_size=16,
        collate_fn=checked_ids,
    )
    dataset = StreamingDataset(remote=source, local=str(cache), shuffle=True, predownload=8)
    loader = StreamingDataLoader(dataset, batch_size=16, num_workers=n_workers, collate_fn=checked_ids)
    n_killed = 0
    found = []
    for number, batch in enumerate(loader):
        found.append(batch)
        if number % 5 == 0:
            for fetcher in _fetchers(str(cache)):
                fetcher.kill()
                n_killed += 1
            for shard in list(cache.glob("shard.*"))[::2]:  # so that there is always something left to fetch
                shard.unlink()
    assert found == list(clean)
    assert n_killed >= 2


def test_a_killed_rank_does_not_hold_up_the_others(source: str, tmp_path: Path) -> None:
    """There is no rendezvous: whoever lives goes on."""
    job = Job(Layout(1, 2, 1), 16, source, str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    process, receive = start_rank(job, 0, _endless)
    _wait_until((tmp_path / "cache" / "first-batch-0").exists, "the first rank's first batch")
    os.killpg(process.pid, signal.SIGKILL)
    process.join(60)
    receive.close()
    alone = start_rank(job, 1)
    assert len(alone[1].recv().epochs[0]) == -(-N // 16)
    alone[0].join(60)


def test_dropping_an_iterator_ends_its_workers(source: str, tmp_path: Path) -> None:
    """Breaking out and dropping the loader leaves no process behind."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    dataset = StreamingDataset(remote=source, local=str(tmp_path / "cache"), shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=16, num_workers=3, collate_fn=checked_ids)
    batches = iter(loader)
    list(islice(batches, 2))
    del batches, loader
    _wait_until(
        lambda: {child.pid for child in psutil.Process().children(recursive=True)} <= before, "the workers to end"
    )


def test_global_batches_need_equal_counts() -> None:
    """The helper that all these comparisons use does not hide a short rank."""
    with pytest.raises(AssertionError):
        global_batches([Report([[[1]]], None), Report([[]], None)], 0)
