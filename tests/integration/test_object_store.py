"""Write, stream, stop and resume against a real S3 server, with real ranks and workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streaming import StreamingDataset
from streaming.testing import Fault, FaultProxy, FaultRule
from streaming.testing.s3 import S3Server
from support.numbered import write_numbered
from support.ranks import Job, Layout, Report, finish, global_batches, run_rank, run_ranks, start_rank

N, GLOBAL_BATCH, STOP = 301, 8, 11


@pytest.fixture(scope="module")
def remote(s3_server: S3Server) -> str:
    """A data set in the store, written by this process, which forks its ranks afterwards."""
    url = s3_server.url("matrix")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.variables().items():
            patch.setenv(name, value)
        write_numbered(url, N, compression="zstd")
    return url


@pytest.fixture(scope="module")
def whole(remote: str, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> list[list[list[int]]]:
    """Two epochs of batches, from one rank without workers."""
    cache = tmp_path_factory.mktemp("whole")
    job = Job(Layout(1, 1, 0), GLOBAL_BATCH, remote, str(cache), n_epochs=2, variables=s3_server.variables())
    reports = run_ranks(job)
    return [global_batches(reports, epoch) for epoch in (0, 1)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("n_workers", [0, 1, 3])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_stream_and_resume(
    remote: str,
    whole: list[list[list[int]]],
    s3_server: S3Server,
    tmp_path: Path,
    n_ranks: int,
    n_workers: int,
    method: str,
) -> None:
    """The parent reads a sample over the network before it starts its workers; every byte is compared."""
    if n_workers == 0 and method == "spawn":
        method = "fork"  # without workers nothing is started; the ranks then differ from the case above in their nodes
        layout = Layout(n_ranks, 1, 0)
    else:
        layout = Layout(1, n_ranks, n_workers)
    job = Job(
        layout,
        GLOBAL_BATCH,
        remote,
        str(tmp_path / "cache"),
        method=method,
        index_first=N - 1,
        variables=s3_server.variables(),
    )
    first = run_ranks(job.then(n_batches=STOP))
    assert global_batches(first, 0) == whole[0][:STOP]
    n_epochs = 1 if method == "spawn" else 2  # each start of a spawned worker costs seconds
    rest = run_ranks(job.then(state=first[0].state, n_epochs=n_epochs))
    found = global_batches(rest, 0)
    assert found[:-1] == whole[0][STOP:-1]
    assert set(found[-1]) >= set(range(N)) - {sample for batch in whole[0][:-1] for sample in batch}
    if n_epochs == 2:
        assert global_batches(rest, 1)[:-1] == whole[1][:-1]


def test_the_quick_start_forks_after_using_the_network(remote: str, s3_server: S3Server, tmp_path: Path) -> None:
    """Random access in the parent, then forked workers, then again in the parent: 12 times, all bytes right."""
    for round_number in range(12):
        cache = tmp_path / f"cache{round_number}"
        job = Job(Layout(1, 1, 4), 8, remote, str(cache), index_first=7 * round_number, variables=s3_server.variables())
        reports = run_ranks(job)
        assert {sample for batch in global_batches(reports, 0) for sample in batch} == set(range(N))


def test_a_warm_cache_asks_for_its_index_alone(remote: str, s3_server: S3Server, tmp_path: Path) -> None:
    """With everything on disk each rank looks once whether the index is the store's, and reads without an answer."""
    cache = tmp_path / "cache"
    job = Job(Layout(1, 2, 2), GLOBAL_BATCH, remote, str(cache), variables=s3_server.variables())
    cold = run_ranks(job)
    with FaultProxy.started(buckets={}) as refusing:
        refusing.set_rules(FaultRule(Fault(status=403)))
        warm = run_ranks(job.then(variables={**s3_server.variables(), **refusing.variables()}))
        asked = refusing.counts().requests_by_path
    assert [report.epochs for report in warm] == [report.epochs for report in cold]
    assert sum(asked.values()) == 2, asked
    assert {path.rpartition("/")[2] for path in asked} == {"index.json"}


def test_two_jobs_share_one_cache_and_fetch_each_shard_once(remote: str, s3_server: S3Server, tmp_path: Path) -> None:
    """Different seeds, the same remote, the same cache, at once: both are right, and each object came once."""
    jobs = [
        Job(
            Layout(1, 2, 1),
            GLOBAL_BATCH,
            remote,
            str(tmp_path / "cache"),
            options={"shuffle_seed": seed},
            variables=s3_server.variables(),
        )
        for seed in (1, 2)
    ]
    started = [start_rank(job, rank, _count_fetched) for job in jobs for rank in range(2)]
    reports = finish(started)
    for pair in (reports[:2], reports[2:]):
        assert {sample for batch in global_batches(pair, 0) for sample in batch} == set(range(N))
    assert reports[0].epochs != reports[2].epochs
    states = [report.state for report in reports]
    n_files = max(state["files"] for state in states if state)
    assert n_files == len([name for name in os.listdir(tmp_path / "cache" / "node0") if name[0] != "."])


def _count_fetched(job: Job, rank: int) -> Report:
    """A rank's epoch, and how many files the fetcher says to have fetched."""
    report = run_rank(job, rank)
    cache = os.path.join(job.cache, "node0")
    dataset = StreamingDataset(remote=job.remote, local=cache)
    return Report(report.epochs, dataset._streaming_internals.store.client.status())
