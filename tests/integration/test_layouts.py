"""The hardware never shows in the data: real rank processes with real loader workers, in several layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming import StreamingDataset
from support.numbered import write_numbered
from support.ranks import Job, Layout, global_batches, run_ranks

LAYOUTS = [Layout(1, 1, 0), Layout(1, 1, 3), Layout(2, 2, 2), Layout(1, 6, 1), Layout(3, 1, 2)]
GLOBAL_BATCH = 12
STOP = 7  # batches into the second epoch


def _epoch(source: Path, epoch: int) -> list[int]:
    """The order of the whole epoch, as a single process without a loader computes it."""
    dataset = StreamingDataset(local=str(source), shuffle=True)
    return list(map(int, dataset.order_of(epoch).take(0, dataset.epoch_size)))


def _assert_batches(found: list[list[int]], order: list[int], start: int) -> None:
    """Batch t holds the next 12 positions, in any order; only the last may hold more, and those are repeats."""
    assert len(found) == -(-(len(order) - start) // GLOBAL_BATCH)
    for number, batch in enumerate(found):
        at = start + number * GLOBAL_BATCH
        expected = sorted(order[at : at + GLOBAL_BATCH])
        if number < len(found) - 1:
            assert batch == expected, f"batch {number}"
        else:
            rest = list(batch)
            for sample_id in expected:
                rest.remove(sample_id)
            assert len(rest) < GLOBAL_BATCH
            assert set(rest) <= set(order)


@pytest.mark.parametrize("own_loader", [True, False], ids=["own loader", "plain loader"])
@pytest.mark.parametrize("n_samples", [997, 5, 60])
def test_every_layout_sees_the_same_batches_and_resumes_on_any_other(
    tmp_path: Path, n_samples: int, own_loader: bool
) -> None:
    """Two epochs, a stop at a batch whose number is no multiple of anything, and a resume on another layout.

    997 samples divide by nothing, 5 are fewer than ranks, 60 divide by all.
    """
    source = tmp_path / "source"
    write_numbered(str(source), n_samples)
    orders = [_epoch(source, epoch) for epoch in (0, 1, 2)]
    assert sorted(orders[1]) == list(range(n_samples))
    n_batches = -(-n_samples // GLOBAL_BATCH)
    stop = min(STOP, n_batches)
    spent = stop * GLOBAL_BATCH
    states = []
    for number, layout in enumerate(LAYOUTS):
        job = Job(layout, GLOBAL_BATCH, str(source), str(tmp_path / f"cache{number}"), own_loader=own_loader)
        reports = run_ranks(job.then(n_epochs=2, n_batches=stop))
        _assert_batches(global_batches(reports, 0), orders[0], 0)
        for batch, start in zip(global_batches(reports, 1), range(0, spent, GLOBAL_BATCH), strict=True):
            assert set(batch) >= set(orders[1][start : start + GLOBAL_BATCH])
            assert len(batch) == GLOBAL_BATCH or stop == n_batches
        assert all(report.state == reports[0].state for report in reports), "the states of ranks differ"
        states.append(reports[0].state)
    for number, layout in enumerate(LAYOUTS):
        state = states[(number + 2) % len(LAYOUTS)]
        job = Job(layout, GLOBAL_BATCH, str(source), str(tmp_path / f"cache{number}"), own_loader=own_loader)
        reports = run_ranks(job.then(n_epochs=2, state=state))
        if spent < n_samples:
            _assert_batches(global_batches(reports, 0), orders[1], spent)
            _assert_batches(global_batches(reports, 1), orders[2], 0)
        else:  # the stop was at the end of epoch 1: no empty epoch, the next one begins
            _assert_batches(global_batches(reports, 0), orders[2], 0)


def test_a_resume_with_another_global_batch_goes_on_at_the_same_sample(tmp_path: Path) -> None:
    """12 samples in a batch until the stop, 10 after it: none is lost or comes twice."""
    source = tmp_path / "source"
    write_numbered(str(source), 500)
    order = _epoch(source, 0)
    first = Job(Layout(1, 2, 1), 12, str(source), str(tmp_path / "cache"), n_batches=9)
    state = run_ranks(first)[0].state
    second = Job(Layout(1, 5, 0), 10, str(source), str(tmp_path / "cache"), state=state)
    batches = global_batches(run_ranks(second), 0)
    for number, batch in enumerate(batches[:-1]):
        at = 9 * 12 + number * 10
        assert batch == sorted(order[at : at + 10])
    assert set().union(*batches) >= set(order[9 * 12 :])


def test_one_shard_is_shared_by_eight_ranks_of_four_workers(tmp_path: Path) -> None:
    """An epoch is split by position, so every reader gets data even if there are fewer shards than readers."""
    source = tmp_path / "source"
    write_numbered(str(source), 203, size_limit=None)
    job = Job(Layout(1, 8, 4), 32, str(source), str(tmp_path / "cache"))
    reports = run_ranks(job)
    batches = global_batches(reports, 0)
    assert {sample_id for batch in batches for sample_id in batch} == set(range(203))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_stored_order_without_shuffle(tmp_path: Path, compression: str | None) -> None:
    """The ranks of a machine take turns, sample by sample, as under PyTorch's DistributedSampler."""
    source = tmp_path / "source"
    write_numbered(str(source), 100, compression=compression)
    job = Job(Layout(1, 2, 2), 10, str(source), str(tmp_path / "cache"), options={"shuffle": False})
    reports = run_ranks(job)
    for number in range(10):
        assert [report.epochs[0][number] for report in reports] == [
            list(range(10 * number, 10 * number + 10, 2)),
            list(range(10 * number + 1, 10 * number + 10, 2)),
        ]
