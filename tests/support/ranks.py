"""Real rank processes, which learn their rank from a launcher's variables and report the ids of every batch.

They are forked from the test process, which has imported torch; a new interpreter for each would cost seconds. Each
node has a cache of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from torch.utils.data import DataLoader

from streaming import StreamingDataLoader, StreamingDataset
from support.numbered import checked_ids

DEADLINE_S = 240.0


@dataclass(frozen=True)
class Layout:
    """Nodes × ranks per node × workers per rank."""

    n_nodes: int
    ranks_per_node: int
    n_workers: int

    @property
    def n_ranks(self) -> int:
        return self.n_nodes * self.ranks_per_node

    def __str__(self) -> str:
        return f"{self.n_nodes}x{self.ranks_per_node}x{self.n_workers}"


@dataclass(frozen=True)
class Job:
    """The task of every rank: load `state`, read `n_epochs`, only `n_batches` of the last, and report the state."""

    layout: Layout
    global_batch: int
    remote: str | None
    cache: str  # each node caches below it
    n_epochs: int = 1
    n_batches: int | None = None
    state: dict[str, Any] | None = None
    method: str = "fork"
    own_loader: bool = True
    index_first: int | None = None  # read this sample first: the parent then has used the network
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def then(self, **changes: Any) -> Job:
        """This job with changed fields."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Report:
    """What one rank has received, ids by epoch and batch, and its state at the end."""

    epochs: list[list[list[int]]]
    state: dict[str, Any] | None


def run_ranks(job: Job) -> list[Report]:
    """Run all ranks at once, to their end. Fails if one fails or hangs."""
    ranks = [start_rank(job, rank) for rank in range(job.layout.n_ranks)]
    return finish(ranks)


def start_rank(job: Job, rank: int, task: Callable[[Job, int], Report] | None = None) -> tuple[Any, Connection]:
    """Start one rank in a process group of its own."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_rank_process, args=(task or run_rank, job, rank, send))
    process.start()
    send.close()
    return process, receive


def finish(ranks: list[tuple[Any, Connection]]) -> list[Report]:
    """Wait for started ranks; return their reports in order."""
    reports: list[Report] = []
    problems: list[str] = []
    end = time.monotonic() + DEADLINE_S
    for number, (_, receive) in enumerate(ranks):
        try:
            if not receive.poll(max(0.0, end - time.monotonic())):
                problems.append(f"rank {number} hangs")
            else:
                found = receive.recv()
                (reports if isinstance(found, Report) else problems).append(found)
        except EOFError:
            problems.append(f"rank {number} died without a word")
    for process, receive in ranks:
        if problems:
            kill_group(process)
        process.join(60)
        receive.close()
        process.close()
    assert not problems, "\n".join(map(str, problems))
    return reports


def kill_group(process: Any) -> None:
    """Send SIGKILL to a rank and its workers at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _rank_process(task: Callable[[Job, int], Report], job: Job, rank: int, send: Connection) -> None:
    os.setpgid(0, 0)
    for name, value in {**launcher_variables(job.layout, rank), **job.variables}.items():
        os.environ[name] = value
    try:
        send.send(task(job, rank))
    except BaseException:
        send.send(f"rank {rank}:\n{traceback.format_exc()}")
    send.close()


def launcher_variables(layout: Layout, rank: int) -> dict[str, str]:
    """The variables that torchrun would set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(layout.n_ranks),
        "LOCAL_RANK": str(rank % layout.ranks_per_node),
        "LOCAL_WORLD_SIZE": str(layout.ranks_per_node),
    }


def make_dataset(job: Job, rank: int) -> StreamingDataset:
    """This rank's dataset. For a plain loader it is given the batch size."""
    options = {"shuffle": True, **job.options}
    if not job.own_loader:
        options["batch_size"] = job.global_batch // job.layout.n_ranks
    cache = os.path.join(job.cache, f"node{rank // job.layout.ranks_per_node}")
    return StreamingDataset(remote=job.remote, local=cache, **options)


def make_loader(job: Job, dataset: StreamingDataset, **options: Any) -> DataLoader[Any]:
    """This rank's loader."""
    kind = StreamingDataLoader if job.own_loader else DataLoader
    n_workers = job.layout.n_workers
    return kind(
        dataset,
        batch_size=job.global_batch // job.layout.n_ranks,
        num_workers=n_workers,
        multiprocessing_context=job.method if n_workers else None,
        collate_fn=checked_ids,
        **options,
    )


def run_rank(job: Job, rank: int) -> Report:
    """Read the job's epochs like a training process."""
    assert job.global_batch % job.layout.n_ranks == 0
    dataset = make_dataset(job, rank)
    if job.index_first is not None:
        assert dataset[job.index_first]["id"] == job.index_first
    loader = make_loader(job, dataset)
    if job.state is not None:
        dataset.load_state_dict(job.state)
    epochs = []
    for epoch in range(job.n_epochs):
        is_last = epoch == job.n_epochs - 1
        batches = iter(loader)
        epochs.append(list(islice(batches, job.n_batches if is_last else None)))
    if isinstance(loader, StreamingDataLoader):
        return Report(epochs, loader.state_dict())
    n_samples = sum(map(len, epochs[-1])) * job.layout.n_ranks
    return Report(epochs, dataset.state_dict(n_samples, from_beginning=False))


def global_batches(reports: list[Report], epoch: int) -> list[list[int]]:
    """The sorted ids of all ranks for each batch of an epoch. Fails unless all ranks have equally many batches."""
    counts = {len(report.epochs[epoch]) for report in reports}
    assert len(counts) == 1, f"ranks saw different numbers of batches: {counts}"
    return [
        sorted(sample_id for report in reports for sample_id in report.epochs[epoch][number])
        for number in range(counts.pop())
    ]
