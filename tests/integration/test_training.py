"""A training run gives the same loss curve on any number of ranks, and through a stop and a resume on another number.

The ranks are real processes that average by hand what data parallelism averages: sums over samples, all-reduced with
gloo, divided by the number of samples in the global batch. A batch has the same samples on every layout, except for
padding. So padding has weight 0, and a sample that comes twice in its own batch has weight 1/2 each time. All numbers
are float64, so that layouts differ only in the order of sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import distributed, nn

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from support.ranks import Job, Layout, Report, finish, start_rank

GLOBAL_BATCH = 24
N_EPOCHS = 2
TOLERANCE = 1e-8
LAYOUTS = [Layout(1, 1, 0), Layout(1, 2, 1), Layout(2, 2, 0), Layout(3, 2, 0)]


@dataclass(frozen=True)
class Run:
    """One start of a training: the checkpoint it resumes from, the step to stop at, and where its state is saved."""

    n_samples: int
    rendezvous: str
    stop: int
    resume_from: str | None = None
    save_to: str | None = None


@dataclass(frozen=True)
class Curve(Report):
    """A report with the loss of every step."""

    losses: list[float]


class Digits(StreamingDataset):
    """Digits: number, pixels as float64 (1, 8, 8) in [0, 1], and class."""

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[int, NDArray[np.float64], int]:
        sample = super().get_item(sample_id, retry)
        return sample["id"], sample["pixels"], sample["class"]


def _write_digits(out: Path, n_samples: int) -> None:
    digits = load_digits()
    columns = {"id": "int", "pixels": "ndarray:float64:1,8,8", "class": "int"}
    with MDSWriter(out=str(out), columns=columns, size_limit="16kb") as writer:
        for number in range(n_samples):
            pixels = digits.images[number].astype(np.float64)[None] / 16
            writer.write({"id": number, "pixels": pixels, "class": int(digits.target[number])})


def _new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    ).double()


def _new_optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _weights(ids: torch.Tensor, expected: NDArray[np.int64], n_samples: int) -> torch.Tensor:
    """Weights of this rank's samples, float64 (sample,), with which all ranks together count each sample once."""
    copies = torch.zeros(n_samples, dtype=torch.float64)
    copies.index_add_(0, ids, torch.ones(len(ids), dtype=torch.float64))
    distributed.all_reduce(copies)
    is_due = torch.zeros(n_samples, dtype=torch.float64)
    is_due[torch.from_numpy(expected)] = 1
    assert bool((copies[is_due > 0] > 0).all()), "all ranks together miss a sample of this batch"
    return is_due[ids] / copies[ids]


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, batch: Any, weights: torch.Tensor, n_due: int) -> float:
    """Take one step over all ranks; return the mean loss over the samples of the global batch."""
    _, pixels, classes = batch
    optimiser.zero_grad()
    losses = nn.functional.cross_entropy(model(pixels), classes, reduction="none")
    loss = (losses * weights).sum() / n_due
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    sums = torch.cat([loss.detach().reshape(1), *(p.grad.ravel() for p in parameters if p.grad is not None)])
    distributed.all_reduce(sums)
    for parameter, gradient in zip(parameters, torch.split(sums[1:], [p.numel() for p in parameters])):
        parameter.grad = gradient.reshape(parameter.shape)
    optimiser.step()
    return float(sums[0])


def _train(run: Run, job: Job, rank: int) -> Curve:
    """Train as one rank of a data-parallel training."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{run.rendezvous}",
        rank=rank,
        world_size=job.layout.n_ranks,
        timeout=timedelta(seconds=120),
    )
    node = rank // job.layout.ranks_per_node
    dataset = Digits(remote=job.remote, local=f"{job.cache}/node{node}", shuffle=True, shuffle_seed=3)
    batch_size = GLOBAL_BATCH // job.layout.n_ranks
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=job.layout.n_workers)
    model = _new_model()
    optimiser = _new_optimiser(model)
    epoch, consumed, losses = 0, 0, list[float]()
    per_epoch = -(-run.n_samples // GLOBAL_BATCH)
    step = 0
    if run.resume_from is not None:
        saved = torch.load(run.resume_from)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        loader.load_state_dict(saved["data"])
        epoch, consumed, step = saved["data"]["epoch"], saved["data"]["sample_in_epoch"], saved["step"]
    while step < run.stop:
        order = dataset.order_of(epoch)
        for batch in loader:
            expected = order.take(consumed, min(consumed + GLOBAL_BATCH, run.n_samples))
            losses.append(_step(model, optimiser, batch, _weights(batch[0], expected, run.n_samples), len(expected)))
            consumed += GLOBAL_BATCH
            step += 1
            if step == run.stop:
                break
        else:
            assert step == (epoch + 1) * per_epoch
        epoch, consumed = epoch + 1, 0
    if run.save_to is not None and rank == 0:
        state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
        torch.save({**state, "data": loader.state_dict(), "step": step}, run.save_to)
    distributed.destroy_process_group()
    return Curve([], None, losses)


def _curve(run: Run, source: Path, layout: Layout) -> list[float]:
    """The losses of a run on a layout; all ranks must agree on them."""
    cache = f"{run.rendezvous}.cache"
    job = Job(layout, GLOBAL_BATCH, str(source), cache, variables={"GLOO_SOCKET_IFNAME": "lo"})
    reports = finish([start_rank(job, rank, partial(_train, run)) for rank in range(layout.n_ranks)])
    curves = [report.losses for report in reports if isinstance(report, Curve)]
    assert all(curve == curves[0] for curve in curves)
    return curves[0]


@pytest.mark.parametrize("n_samples", [960, 799])
def test_the_loss_curve_is_the_same_on_1_2_4_and_6_ranks_and_through_a_resume(tmp_path: Path, n_samples: int) -> None:
    """Two epochs. 960 samples fill whole batches; the last of 799 has 7, and padding that differs between layouts."""
    _new_optimiser(_new_model())  # the first optimiser imports 800 modules: once here, not in every rank
    source = tmp_path / "source"
    _write_digits(source, n_samples)
    per_epoch = -(-n_samples // GLOBAL_BATCH)
    whole = Run(n_samples, "", N_EPOCHS * per_epoch)
    curves = []
    for number, layout in enumerate(LAYOUTS):
        run = Run(n_samples, str(tmp_path / f"meet{number}"), whole.stop)
        curves.append(np.array(_curve(run, source, layout)))
    assert len(curves[0]) == N_EPOCHS * per_epoch
    assert curves[0][-10:].mean() < 0.5 * curves[0][:10].mean(), "nothing was learned, so nothing was compared"
    for layout, curve in zip(LAYOUTS, curves):
        assert np.abs(curve / curves[0] - 1).max() <= TOLERANCE, str(layout)

    stop = per_epoch + per_epoch // 3  # in the middle of the second epoch
    for number, (before, after) in enumerate([(LAYOUTS[2], LAYOUTS[3]), (LAYOUTS[3], LAYOUTS[0])]):
        saved = str(tmp_path / f"checkpoint{number}.pt")
        first = Run(n_samples, str(tmp_path / f"before{number}"), stop, save_to=saved)
        second = Run(n_samples, str(tmp_path / f"after{number}"), whole.stop, resume_from=saved)
        broken = np.array(_curve(first, source, before) + _curve(second, source, after))
        assert np.abs(broken / curves[0] - 1).max() <= TOLERANCE, f"{before} then {after}"
