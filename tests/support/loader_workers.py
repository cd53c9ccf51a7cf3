"""Processes that count as workers of a PyTorch loader, without the loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset
from torch.utils.data._utils import worker


def become_loader_worker() -> None:
    """Make `torch.utils.data.get_worker_info` say from now on that this process is a loader worker."""
    worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=Dataset[Any]())


def as_loader_worker(target: Callable[..., Any], *arguments: Any) -> None:
    """Call `target` in a new process, as a loader worker."""
    become_loader_worker()
    target(*arguments)
