"""Ranks started from a dataset or loader that was made before them, as `torch.multiprocessing` and trainers do it.

Each such process is a rank: it finds its own world and has epochs, states and counters of its own, from where the
dataset stood when the rank was started. Only loader workers share those of their rank.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch.utils.data import DataLoader

from streaming import StreamingDataLoader, StreamingDataset, World
from support.numbered import checked_ids, write_numbered

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

N_SAMPLES = 400
N_RANKS = 2
BATCH = 10
DEADLINE_S = 240.0
METHODS = ["fork", "spawn", "forkserver"]


def dataset_at(path: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(local=str(path), shuffle=True, num_canonical_nodes=2, batch_size=BATCH, **options)


def loader_over(dataset: StreamingDataset, *, is_own: bool, n_workers: int, method: str = "fork") -> DataLoader[Any]:
    """Its workers are forked unless a test says otherwise: a new interpreter for each costs seconds."""
    kind: type[DataLoader[Any]] = StreamingDataLoader if is_own else DataLoader
    started = {"multiprocessing_context": method, "num_workers": n_workers} if n_workers else {}
    return kind(dataset, batch_size=BATCH, collate_fn=checked_ids, **started)  # type: ignore[arg-type]


def train(rank: int, meeting: str, loaders: Sequence[DataLoader[Any]], n_epochs: int, n_batches: int, out: Any) -> None:
    """Read `n_epochs` with each loader, then `n_batches` of the next; report the ids and the state."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=N_RANKS)
    reports = []
    for loader in loaders:
        epochs = [[i for batch in loader for i in batch] for _ in range(n_epochs)]
        torch.distributed.barrier()
        last = [i for batch in islice(iter(loader), n_batches) for i in batch] if n_batches else []
        state = loader.state_dict() if isinstance(loader, StreamingDataLoader) else None
        reports.append((epochs, last, state))
    out.put((rank, reports))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_ranks(
    method: str, tmp_path: Path, loaders: Sequence[DataLoader[Any]], *, n_epochs: int, n_batches: int = 0
) -> list[Any]:
    """What each rank reports, by rank."""
    context = multiprocessing.get_context(method)
    out = context.Queue()
    meeting = str(tmp_path / f"meeting-{method}-{n_epochs}-{n_batches}")
    ranks = [
        context.Process(target=train, args=(rank, meeting, loaders, n_epochs, n_batches, out))  # type: ignore[attr-defined]
        for rank in range(N_RANKS)
    ]
    for rank in ranks:
        rank.start()
    try:
        reports = dict(out.get(timeout=DEADLINE_S) for _ in ranks)
    finally:
        for rank in ranks:
            rank.join(20)
            rank.kill()
            rank.join()
    return [reports[rank] for rank in range(N_RANKS)]


def expected(path: Path, n_epochs: int) -> list[list[list[int]]]:
    """What each rank reads in each epoch: (epoch, rank, sample)."""
    datasets = [
        dataset_at(path, world=World(rank=rank, num_ranks=N_RANKS, ranks_per_node=1)) for rank in range(N_RANKS)
    ]
    return [[checked_ids(list(dataset)) for dataset in datasets] for _ in range(n_epochs)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_numbered(str(tmp_path / "data"), N_SAMPLES)
    return tmp_path / "data"


@pytest.mark.parametrize("method", METHODS)
def test_each_rank_reads_its_share_of_each_epoch(tmp_path: Path, data: Path, method: str) -> None:
    """With plain and own loaders, with and without workers; then a state resumes in ranks started after loading it."""
    kinds = [(is_own, n_workers) for is_own in (False, True) for n_workers in (0, 2)]
    loaders = [loader_over(dataset_at(data), is_own=is_own, n_workers=n_workers) for is_own, n_workers in kinds]
    reports = run_ranks(method, tmp_path, loaders, n_epochs=2, n_batches=5)
    epochs = expected(data, 3)
    states = []
    for number, kind in enumerate(kinds):
        for epoch in range(2):
            read = [reports[rank][number][0][epoch] for rank in range(N_RANKS)]
            assert read == epochs[epoch], (kind, epoch)
        begun = [reports[rank][number][1] for rank in range(N_RANKS)]
        assert begun == [epochs[2][rank][: 5 * BATCH] for rank in range(N_RANKS)], kind
        states.append([reports[rank][number][2] for rank in range(N_RANKS)])
    assert states[2][0] == states[2][1] == states[3][0] == states[3][1] is not None

    resumed = loader_over(dataset_at(data), is_own=True, n_workers=2, method=method)  # as the ranks are
    assert isinstance(resumed, StreamingDataLoader)
    resumed.load_state_dict(states[2][0])
    reports = run_ranks(method, tmp_path, [resumed], n_epochs=1)
    assert [reports[rank][0][0][0] for rank in range(N_RANKS)] == [
        epochs[2][rank][5 * BATCH :] for rank in range(N_RANKS)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_ranks_go_on_from_the_epochs_of_the_process_that_started_them(tmp_path: Path, data: Path, method: str) -> None:
    """It reads an epoch by itself, starts the ranks, and reads on: nobody moves the epochs of another."""
    dataset = dataset_at(data)
    loader = loader_over(dataset, is_own=False, n_workers=2)
    assert sorted(i for batch in loader for i in batch) == list(range(N_SAMPLES))
    reports = run_ranks(method, tmp_path, [loader], n_epochs=2)
    epochs = expected(data, 3)
    for epoch in (1, 2):
        assert [reports[rank][0][0][epoch - 1] for rank in range(N_RANKS)] == epochs[epoch]
    assert dataset.next_epoch == 1
    assert sorted(i for batch in loader for i in batch) == list(range(N_SAMPLES))
    assert dataset.next_epoch == 2
