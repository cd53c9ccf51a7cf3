"""What a dataset reports while it reads: figures that add up, a line per epoch, warnings, bars on a terminal."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streaming import Stream, StreamingDataLoader, StreamingDataset, WaitRules
from streaming.testing import FaultProxy, ProxyLimits
from support.fetcher_world import PATIENCE_S, client_of, fetchers_of, wait_until
from support.numbered import checked_ids, write_numbered
from support.stores import gets, put_folder

N = 400
SOON = WaitRules(min_s=0.3, min_batches=5, n_first=1)


def _put(store: FaultProxy, folder: Path, key: str, n_samples: int = N, **options: Any) -> None:
    """A data set in the store, as `s3://bkt/<key>`."""
    write_numbered(str(folder / key), n_samples, **options)
    put_folder(store, folder / key, key)


def _read_all(loader: StreamingDataLoader) -> list[int]:
    return sorted(number for batch in loader for number in batch)


# --- figures


def test_figures_of_local_data_ask_nobody(tmp_path: Path) -> None:
    """No fetcher, no message, no file beside the data; the figures are there all the same."""
    write_numbered(str(tmp_path), N)
    with StreamingDataset(local=str(tmp_path), batch_size=8) as dataset:
        files = sorted(os.listdir(tmp_path))
        assert _read_all(StreamingDataLoader(dataset, batch_size=8, collate_fn=checked_ids)) == list(range(N))
        stats = dataset.stats()
        assert dataset._streaming_internals.store.client.n_sent == 0
    assert stats.fetcher is None
    assert (stats.epoch, stats.since_start.samples, stats.of_epoch.samples) == (0, N, N)
    assert stats.since_start.shards_at_hand > 5
    assert stats.since_start.wait_s == 0
    assert stats.since_start.batches == N // 8
    assert stats.streams[0].remote == str(tmp_path)
    assert sorted(os.listdir(tmp_path)) == files


@pytest.mark.parametrize(("n_workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_figures_of_all_processes_and_streams_add_up(
    store: FaultProxy, tmp_path: Path, n_workers: int, method: str | None
) -> None:
    """Samples, shards, bytes and files are those that were read and fetched, in whichever process."""
    _put(store, tmp_path, "a", compression="zstd")
    _put(store, tmp_path, "b", 100, compression="zstd")
    streams = [Stream(remote=f"s3://bkt/{key}", local=str(tmp_path / "cache" / key)) for key in ("a", "b")]
    with StreamingDataset(streams=streams, shuffle=True) as dataset:
        loader = StreamingDataLoader(
            dataset, batch_size=8, num_workers=n_workers, multiprocessing_context=method, collate_fn=len
        )
        for epoch in range(2):
            assert sum(loader) == N + 100
            stats = dataset.stats()
            assert stats.epoch == epoch
            assert stats.of_epoch.samples == N + 100
            assert stats.since_start.samples == (epoch + 1) * (N + 100)
        stats = dataset.stats()
        now = stats.since_start
        assert [stream.samples for stream in stats.streams] == [2 * N, 200]
        assert now.shards_at_hand + now.shards_awaited >= dataset.num_shards
        assert stats.of_epoch.shards_awaited == 0  # all are on disk in the second epoch
        assert now.index_wait_s > 0
    assert stats.fetcher is not None
    for stream, key in zip(stats.streams, "ab"):
        sizes = [path.stat().st_size for path in (tmp_path / key).iterdir()]
        assert stream.remote == f"s3://bkt/{key}"
        assert (stream.files, stream.bytes) == (len(sizes), sum(sizes))
    assert stats.fetcher.bytes == sum(stream.bytes or 0 for stream in stats.streams)
    assert stats.fetcher.requests == gets(store).total()
    assert stats.fetcher.failures == stats.fetcher.throttled == 0


def test_samples_by_range_are_told_by_reason(store: FaultProxy, tmp_path: Path) -> None:
    """Random access to cold shards: their offset tables and records."""
    _put(store, tmp_path, "d", 1000)
    with StreamingDataset(remote="s3://bkt/d", local=str(tmp_path / "cache"), batch_size=8) as dataset:
        wanted = dataset.sample_offset_per_shard[-2:].tolist()  # beyond the shards that are announced at the start
        assert checked_ids(dataset[wanted]) == wanted
        stats = dataset.stats()
    assert stats.since_start.samples_by_range == {"random": 2, "ahead": 0, "few": 0, "no_room": 0}
    assert stats.fetcher is not None
    assert stats.fetcher.ranges["random"] == 4
    assert stats.streams[0].ranges == 4
    assert stats.fetcher.range_bytes > 0


def test_stats_start_no_fetcher(tmp_path: Path) -> None:
    """They report on one that runs, and on none that was killed."""
    write_numbered(str(tmp_path / "source"), N)
    cache = tmp_path / "cache"
    options: dict[str, Any] = {"remote": str(tmp_path / "source"), "local": str(cache), "batch_size": 8}
    with StreamingDataset(**options) as dataset:
        for _ in dataset:
            pass
        stats = dataset.stats()
        assert stats.fetcher is not None
        assert stats.fetcher.files == dataset.num_shards + 1
        (fetcher,) = fetchers_of(cache)
        os.kill(fetcher.pid, signal.SIGKILL)
        wait_until("it is gone", lambda: not fetchers_of(cache))
        assert dataset.stats().fetcher is None
    with StreamingDataset(**options) as dataset:
        assert sum(1 for _ in dataset) == N
        assert dataset.stats().fetcher is None
        assert dataset.stats().streams[0].files is None
    assert not fetchers_of(cache)


def test_a_client_finds_the_fetcher_that_followed_the_one_it_knew(tmp_path: Path) -> None:
    """It asks that one, and starts none."""
    (tmp_path / "source").mkdir()
    with client_of(tmp_path / "source", tmp_path) as one, client_of(tmp_path / "source", tmp_path) as two:
        assert one.status_if_any() is None
        first = two.status()["pid"]
        assert (one.status_if_any() or {})["pid"] == first
        os.kill(first, signal.SIGKILL)
        second = two.status()["pid"]
        assert (one.status_if_any() or {})["pid"] == second != first
        assert one.n_launched == 0


def test_counts_of_killed_workers_are_kept(store: FaultProxy, tmp_path: Path) -> None:
    """What they had told before they died."""
    _put(store, tmp_path, "d")
    with StreamingDataset(remote="s3://bkt/d", local=str(tmp_path / "cache"), batch_size=8) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=1, collate_fn=len, prefetch_factor=8)
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        n_samples = dataset.stats().since_start.samples
        assert n_samples >= 8 * 16  # a segment of data on disk is some hundred samples long
        (worker,) = multiprocessing.active_children()
        worker.kill()
        worker.join()
        assert dataset.stats().since_start.samples >= n_samples


# --- a line per epoch


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_line_per_epoch_is_logged_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, n_workers: int
) -> None:
    """At level INFO, for each epoch that is read to its end; none by default."""
    write_numbered(str(tmp_path), N)
    caplog.set_level(logging.INFO, logger="streaming")
    for log_stats, lines in ((True, 2), (False, 0)):
        caplog.clear()
        dataset = StreamingDataset(local=str(tmp_path))
        loader = StreamingDataLoader(
            dataset, batch_size=8, num_workers=n_workers, collate_fn=len, log_stats=log_stats, wait_rules=None
        )
        assert [sum(loader), sum(loader)] == [N, N]
        next(iter(loader))  # an epoch that is left early
        said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch")]
        assert len(said) == lines
        for epoch, line in enumerate(said):
            assert line.startswith(f"epoch {epoch}, rank 0: {N} samples in {N // 8} batches, ")
        dataset.close()


# --- warnings


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    return [each for each in said if "waits for data" in each]


@pytest.mark.filterwarnings("ignore:predownload=1 is below batch_size=4")
@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_slow_store_is_named_as_the_bottleneck(
    store: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture, n_workers: int
) -> None:
    """Once, with the rate of the fetcher and what to do."""
    _put(store, tmp_path, "d", compression="zstd", size_limit=1024)
    store.set_limits(ProxyLimits(latency_s=0.8))
    rules = replace(SOON, min_s=3.0)  # several waits, so that what a busy machine does meanwhile counts little
    with StreamingDataset(remote="s3://bkt/d", local=str(tmp_path / "cache"), batch_size=4, predownload=1) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=n_workers, collate_fn=len, wait_rules=rules)
        assert sum(loader) == N
        figures = dataset.stats().since_start
        assert figures.shard_wait_s > 1
        assert figures.shards_awaited > 10
        assert figures.announced is not None
        assert figures.announced_on_disk is not None
        assert 0 <= figures.announced_on_disk < figures.announced
    (said,) = _said(caplog)
    assert "the bottleneck is the network" in said
    assert "/s, with " in said


class Slow(StreamingDataset):
    """Computes for a while to make each sample."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        sample = super().get_item(sample_id, retry)
        end_s = time.thread_time() + 0.003
        while time.thread_time() < end_s:
            sum(range(1000))
        return sample


def test_a_slow_decoder_is_named_as_the_bottleneck(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Samples are made in the training process itself; the warning has the remedy for that."""
    write_numbered(str(tmp_path), N)
    with Slow(local=str(tmp_path), batch_size=8) as dataset:
        assert sum(StreamingDataLoader(dataset, batch_size=8, collate_fn=len, wait_rules=SOON)) == N
        assert dataset.stats().since_start.cpu_s > 0.003 * N
    (said,) = _said(caplog)
    assert "the bottleneck is decode" in said
    assert "num_workers" in said


def test_slow_training_is_not_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training that is slower than its data does not wait; readers are idle."""
    write_numbered(str(tmp_path), N)
    with StreamingDataset(local=str(tmp_path), batch_size=8) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=1, collate_fn=len, wait_rules=SOON)
        for _ in loader:
            time.sleep(0.1)
        stats = dataset.stats()
    assert not _said(caplog)
    assert stats.since_start.training_worked_s > 1.5


# --- bars

_PROGRAM = """
import sys
from streaming import Stream, StreamingDataset

if __name__ == "__main__":
    streams = [Stream(remote=f"s3://bkt/{key}", local=f"{sys.argv[1]}/{key}") for key in "ab"]
    dataset = StreamingDataset(streams=streams, batch_size=8)
    samples = iter(dataset)
    print(next(samples)["id"], flush=True)
    dataset.close()
"""


def _on_terminal(command: list[str], variables: dict[str, str]) -> tuple[str, str]:
    """Run a program; return what it writes to its standard output, and to a terminal that is its standard error."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=variables)
    os.close(theirs)
    shown, end_s = b"", time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < end_s:
        ready, _, _ = select.select([ours], [], [], 0.1)
        if not ready and run.poll() is not None:
            break
        try:
            shown += os.read(ours, 4096) if ready else b""
        except OSError:  # the other end is closed
            break
    said, _ = run.communicate(timeout=PATIENCE_S)
    os.close(ours)
    assert run.returncode == 0, shown
    return said, shown.decode()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_long_waits_are_shown_on_a_terminal_and_nowhere_else(store: FaultProxy, tmp_path: Path, rank: str) -> None:
    """Of indexes and of the first samples, by one rank of a machine; the line is wiped at the end."""
    for key in "ab":
        _put(store, tmp_path, key, compression="zstd")
    store.set_limits(ProxyLimits(latency_s=1.5))
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    variables = {**os.environ, **world, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "cache one")]
    said, shown = _on_terminal(command, variables)
    assert said.strip().isdigit()
    if rank == "0":
        assert "fetching: 0 of 2 indexes" in shown
        assert "waiting for the first samples: 0 of " in shown
        assert shown.replace("\x1b[A", "").endswith("\r")
    else:
        assert shown == ""
    command[-1] = str(tmp_path / "cache two")
    piped = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=2 * PATIENCE_S, check=True)
    assert piped.stdout == said
    assert piped.stderr == ""


def test_what_comes_at_once_shows_nothing_on_a_terminal(store: FaultProxy, tmp_path: Path) -> None:
    """Nothing in the first second."""
    for key in "ab":
        _put(store, tmp_path, key, compression="zstd")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "cache")]
    subprocess.run(command, capture_output=True, env=variables, timeout=2 * PATIENCE_S, check=True)
    assert _on_terminal(command, variables)[1] == ""  # all files are on disk by now
