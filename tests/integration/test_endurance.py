"""What must hold however often: faults of the store, kills at any moment, processes started in any way.

`STREAMING_ENDURANCE=5 pytest tests/integration/test_endurance.py` does all of it five times as often; CI does it once.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from torch.utils.data import DataLoader

from streaming import Stream, StreamingDataset
from streaming.errors import StreamingError
from streaming.testing import Fault, FaultProxy, FaultRule, ProxyLimits
from streaming.world import World
from support.fetcher_world import fetchers_of, temporaries, wait_until
from support.numbered import checked_id, checked_ids, write_numbered

TIMES: Final = float(os.environ.get("STREAMING_ENDURANCE", "1"))
LIMIT_S: Final = 120.0  # for anything that would hang


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A store of the folder `store`, as the endpoint of this process and its children."""
    with FaultProxy.started(buckets={"bkt": str(tmp_path / "store")}) as proxy:
        for name, value in proxy.variables().items():
            monkeypatch.setenv(name, value)
        yield proxy


# --- a store that breaks

FAULTS: Final = (
    FaultRule(Fault(status=500), probability=0.02),
    FaultRule(Fault(status=503), probability=0.02),
    FaultRule(Fault(status=429, headers={"Retry-After": "1"}), probability=0.01),
    FaultRule(Fault(cut_after=0.5), probability=0.05),
    FaultRule(Fault(stall_s=60.0, stall_after=0.5), probability=0.02),
    FaultRule(Fault(flip_at=0.5), path=r"shard", probability=0.01),
)


def test_an_epoch_of_a_broken_store_is_the_epoch(tmp_path: Path, proxy: FaultProxy) -> None:
    """5 % of requests refused, 5 % of bodies cut, 2 % stalled, 1 % flipped: every sample comes, right, in its place."""
    n_shards = round(1000 * TIMES)
    write_numbered(str(tmp_path / "store" / "data"), 2 * n_shards, size_limit=450)
    options: dict[str, Any] = {"shuffle": True, "batch_size": 16, "num_canonical_nodes": 4}
    with StreamingDataset(local=str(tmp_path / "store" / "data"), **options) as plain:
        assert plain.num_shards >= n_shards
        expected = list(map(checked_id, plain))
    proxy.set_rules(*FAULTS, seed=1)
    broken = StreamingDataset(
        remote="s3://bkt/data",
        local=str(tmp_path / "cache"),
        validate_hash="xxh64",
        download_retry=12,
        download_timeout=2.0,
        **options,
    )
    with broken:
        assert list(map(checked_id, broken)) == expected
    assert min(proxy.counts().fired) > 0
    assert not temporaries(tmp_path / "cache")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=500), "500"),
        (Fault(cut_after=0.5), "bytes|broke"),
        (Fault(flip_at=0.5), "xxh64"),
        (Fault(stall_s=60.0), "too long|nothing"),
    ],
)
def test_without_attempts_left_the_shard_and_the_cause_are_named(
    tmp_path: Path, proxy: FaultProxy, fault: Fault, words: str
) -> None:
    """Within a deadline, where the sample is asked for; those before it have come."""
    write_numbered(str(tmp_path / "store" / "data"), 300)
    proxy.set_rules(FaultRule(fault, path=r"shard\.00003"))
    began_s = time.monotonic()
    with StreamingDataset(
        remote="s3://bkt/data",
        local=str(tmp_path / "cache"),
        validate_hash="xxh64",
        download_retry=2,
        download_timeout=2.0,
    ) as dataset:
        ids: list[int] = []
        with pytest.raises(StreamingError, match=words) as caught:
            ids.extend(map(checked_id, dataset))
    assert "shard.00003" in str(caught.value)
    assert ids == list(range(len(ids)))
    assert ids
    assert time.monotonic() - began_s < LIMIT_S


# --- kills


def _read_for_ever(rank: int, root: str, n_samples: int, problems: Any) -> None:
    """A rank that reads epoch after epoch, in a cache that holds less than its data, until it is killed."""
    try:
        limit = 24 * 4096
        dataset = StreamingDataset(
            remote="s3://bkt/data",
            local=os.path.join(root, "cache"),
            shuffle=True,
            batch_size=8,
            num_canonical_nodes=2,
            shuffle_block_size=64,
            cache_limit=limit,
            keep_zip=bool(rank),
            world=World(rank=rank, num_ranks=2, ranks_per_node=2),
        )
        while True:
            ids = set(map(checked_id, dataset))
            if not ids <= set(range(n_samples)) or len(ids) < n_samples // 2 - 8:
                raise AssertionError(f"rank {rank} got {len(ids)} samples")
            dataset[random.randrange(n_samples)]
    except BaseException as error:
        problems.put(f"rank {rank}: {error!r}")
        raise


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_killed_at_any_moment_the_next_start_is_right(
    tmp_path: Path, proxy: FaultProxy, compression: str | None
) -> None:
    """Readers and the fetcher, in the middle of anything, evicting too: right data, no rubbish, the limit kept."""
    n_samples, n_kills = 1500, round(20 * TIMES)
    write_numbered(str(tmp_path / "store" / "data"), n_samples, compression=compression)
    proxy.set_limits(ProxyLimits(latency_s=0.003))
    cache = tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    problems = context.Queue()
    rng = random.Random(7)
    for _ in range(n_kills):
        ranks = [
            context.Process(target=_read_for_ever, args=(rank, str(tmp_path), n_samples, problems)) for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        time.sleep(rng.uniform(0.1, 1.2))  # the moment is the point
        victims = [process.pid for process in fetchers_of(cache)] + [rank.pid for rank in ranks]
        if rng.random() < 0.3:
            victims = rng.sample(victims, rng.randrange(1, len(victims) + 1))  # some only
            time.sleep(rng.uniform(0.0, 0.3))
        for pid in victims:
            assert pid is not None
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for rank in ranks:
            rank.kill()
            rank.join(LIMIT_S)
        assert problems.empty(), problems.get()
    wait_until("the last fetcher has gone", lambda: not fetchers_of(cache))
    with StreamingDataset(remote="s3://bkt/data", local=str(cache), cache_limit=24 * 4096, batch_size=8) as dataset:
        assert list(map(checked_id, dataset)) == list(range(n_samples))
        wait_until("no rubbish is left", lambda: not temporaries(cache))
        lying = [path for path in cache.rglob("*") if path.is_file() and ".streaming" not in path.parts]
        assert sum(path.stat().st_size for path in lying) <= 24 * 4096


# --- processes

METHODS: Final = ["fork"] * 14 + ["forkserver"] * 2 + ["spawn"]


def test_workers_start_in_any_way_while_the_parent_is_busy(tmp_path: Path, proxy: FaultProxy) -> None:
    """The parent has used the network, and two of its threads go on using it; no start hangs, every epoch is whole."""
    write_numbered(str(tmp_path / "store" / "data"), 400)
    dataset = StreamingDataset(remote="s3://bkt/data", local=str(tmp_path / "cache"), batch_size=20, shuffle=True)
    others = [StreamingDataset(remote="s3://bkt/data", local=str(tmp_path / f"other{number}")) for number in range(2)]
    checked_id(others[0][5])
    over, n_read, problems = threading.Event(), [0, 0], []

    def read(number: int) -> None:
        rng = random.Random(number)
        try:
            while not over.is_set():
                checked_id(others[number][rng.randrange(400)])
                n_read[number] += 1
                for path in (tmp_path / f"other{number}").glob("shard*"):  # so that the next one comes from the store
                    path.unlink(missing_ok=True)
        except BaseException as error:
            problems.append(error)
            raise

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(max(1, round(TIMES))):
            for method in METHODS:
                loader = DataLoader(
                    dataset,
                    batch_size=20,
                    num_workers=2,
                    multiprocessing_context=method,
                    timeout=LIMIT_S,
                    collate_fn=checked_ids,
                )
                ids = [number for batch in loader for number in batch]
                assert sorted(ids) == list(range(400)), (round_, method)
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert not problems
    assert min(n_read) > 0
    assert not any(thread.is_alive() for thread in threads)
    dataset.close()
    for other in others:
        other.close()


def test_a_thousand_streams_start_soon(tmp_path: Path, proxy: FaultProxy) -> None:
    """Against a store of 40 ms: indexes come many at once, each once, over few connections."""
    n_streams = round(200 * TIMES)
    write_numbered(str(tmp_path / "one"), 10)
    files = {path.name: str(path) for path in (tmp_path / "one").iterdir()}
    proxy.add_files("bkt", {f"s{i}/{name}": path for i in range(n_streams) for name, path in files.items()})
    proxy.set_limits(ProxyLimits(latency_s=0.04))
    streams = [Stream(remote=f"s3://bkt/s{i}", local=str(tmp_path / "cache" / str(i))) for i in range(n_streams)]
    with StreamingDataset(streams=streams) as dataset:
        assert dataset.num_streams == n_streams
        assert checked_id(next(iter(dataset))) == 0
    counts = proxy.counts()
    assert all(counts.requests_by_path[f"/bkt/s{i}/index.json"] == 1 for i in range(n_streams))
    assert counts.peak_connections <= 80
