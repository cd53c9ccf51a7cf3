"""A PyTorch loader that knows where training stands."""

from __future__ import annotations

import logging
import os
import secrets
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Final

from torch.utils.data import DataLoader

from streaming.arguments import flag
from streaming.dataset import StreamingDataset
from streaming.errors import OptionError, WorkerError
from streaming.fork_safety import members
from streaming.loader_arguments import named, refuse_settings
from streaming.loader_side import LoaderSide, rank_batch_size
from streaming.read.shared.epoch_ring import StartedEpoch
from streaming.read.telemetry.bottleneck import WaitRules
from streaming.read.telemetry.loader_monitor import LoaderMonitor

_log: Final = logging.getLogger("streaming")


class StreamingDataLoader(DataLoader[Any]):
    """`torch.utils.data.DataLoader` with the same arguments, and with `state_dict()` and `load_state_dict()`.

    A dataset without a batch size takes the loader's. The state counts what this rank has received, not what workers
    have prepared, and is the same on every rank. It may be loaded into any other number of ranks and workers. Each
    iteration is one epoch; several may run at the same time over one dataset. Over another kind of dataset it is
    PyTorch's loader.

    `log_stats`: log a line at the end of each epoch (logger "streaming", INFO); see `StreamingDataset.stats`.
    `wait_rules`: when to warn that training waits for data, and why; None: never.

    Raises OptionError for `in_order=False`, and for `shuffle`, `sampler` and `batch_sampler` over a StreamingDataset,
    which decides the order.
    """

    def __init__(
        self,
        *args: Any,
        log_stats: bool = False,
        wait_rules: WaitRules | None = WaitRules(),  # noqa: B008  it is a frozen value
        **kwargs: Any,
    ) -> None:
        given = named(args, kwargs)
        if isinstance(given.get("dataset"), StreamingDataset):
            refuse_settings(given)
        super().__init__(*args, **kwargs)
        self.log_stats = flag("log_stats", log_stats)
        if wait_rules is not None and not isinstance(wait_rules, WaitRules):
            raise OptionError(f"wait_rules must be a WaitRules or None, not {wait_rules!r}")
        self.wait_rules = wait_rules
        self._monitor: LoaderMonitor | None = None
        self._n_batches_yielded = 0
        self._started: StartedEpoch | None = None
        self._is_exhausted = False
        self._key = 0
        self._n_iterations = 0
        self._process = os.getpid()
        if isinstance(self.dataset, StreamingDataset):
            self._check(self.dataset)

    def _check(self, dataset: StreamingDataset) -> None:
        if not getattr(self, "in_order", True):
            raise OptionError(
                "in_order=False hands batches out in no fixed order; a StreamingDataset cannot resume then"
            )
        own = dataset._streaming_internals.settings.batch_size
        if own is not None and self.batch_size not in (None, own):
            warnings.warn(
                f"the loader's batch_size={self.batch_size} is not the dataset's batch_size={own}: "
                "batches will depend on the number of workers; leave the dataset's out",
                stacklevel=3,
            )

    @property
    def num_samples_yielded(self) -> int:
        """Samples that this rank has received since `iter()`."""
        side, started = self._side, self._started
        if side is None or started is None:
            return self._n_full_samples
        return min(self._n_full_samples, side.n_rank_samples(started.batch_size, started.start))

    @property
    def _n_full_samples(self) -> int:
        """Samples in the batches handed out, if all were full."""
        return self._n_batches_yielded * (self.batch_size or 1)

    @property
    def _side(self) -> LoaderSide | None:
        return self.dataset._streaming_internals if isinstance(self.dataset, StreamingDataset) else None

    def __iter__(self) -> Any:
        """Begin the next epoch, now and not at the first batch; return its batches.

        With persistent workers a loader has one iterator at a time. An iterator with workers belongs to the process
        that made it. One that is older, or is used in a forked process, raises WorkerError.
        """
        if self._process != os.getpid():  # workers that live on in the process from which this one was forked
            self._process, self._iterator = os.getpid(), None
        self._n_iterations += 1
        self._n_batches_yielded = 0
        self._is_exhausted = False
        if not isinstance(self.dataset, StreamingDataset):
            return self._counted(super().__iter__(), None, None)
        side = self.dataset._streaming_internals
        if self._iterator is None:  # else workers of the last epoch live on, and know the key
            self._key = secrets.randbits(62)
        batch_size = rank_batch_size(side.settings.batch_size, self.batch_size)
        self._started = side.begin_epoch(self._key, self.num_workers, batch_size)
        if self._monitor is None:
            self._monitor = side.monitor(self.wait_rules, self.num_workers)
        with side.workers_join(self._key):
            batches = super().__iter__()
        if self.num_workers:
            _iterators.add(batches)
        return self._counted(batches, self._started, self._monitor)

    def _counted(
        self, batches: Iterator[Any], started: StartedEpoch | None, monitor: LoaderMonitor | None
    ) -> Iterator[Any]:
        owner, number = os.getpid(), self._n_iterations
        received = iter(batches if monitor is None else monitor.over(batches))
        try:
            while True:
                self._check_iterator(owner, number)
                try:
                    batch = next(received)
                except StopIteration:
                    break
                self._n_batches_yielded += 1  # first, since whoever has the batch may ask for the state
                yield batch
            self._is_exhausted = True
            if self.log_stats and self._side is not None and started is not None:
                _log.info("%s", self._side.epoch_line(started))
        finally:
            if not self.persistent_workers and os.getpid() == owner:
                _stop_workers(batches)

    def _check_iterator(self, owner: int, number: int) -> None:
        """Raise for an iterator whose workers are another process's, or are busy with another iterator's epoch."""
        if not self.num_workers:
            return
        if os.getpid() != owner:
            raise WorkerError(
                f"this iterator and its workers belong to process {owner}, and this one was forked from it: "
                "call iter() on the loader here"
            )
        if self.persistent_workers and number != self._n_iterations:
            raise WorkerError(
                "iter() was called again on this loader, and its persistent workers serve the newer iterator only: "
                "make a loader for each, or leave persistent_workers out"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}  # workers that live on are this loader's and not its copy's

    def state_dict(self) -> dict[str, Any] | None:
        """Where this loader stands, see `StreamingDataset.state_dict`; None for another kind of dataset."""
        side = self._side
        if side is None:
            return None
        return side.loader_state(self._started, self._n_full_samples, is_exhausted=self._is_exhausted)

    def load_state_dict(self, obj: dict[str, Any], *, accept_other_order: bool = False) -> None:
        """Resume from a state at the next `iter()`; see `StreamingDataset.load_state_dict`.

        Raises OptionError for another kind of dataset.
        """
        if not isinstance(self.dataset, StreamingDataset):
            raise OptionError(f"a {type(self.dataset).__name__} has no state to load")
        options = {"accept_other_order": True} if accept_other_order else {}  # a subclass may not know it
        self.dataset.load_state_dict(obj, **options)
        self._started = None
        self._n_batches_yielded = 0
        self._is_exhausted = False


_iterators: weakref.WeakSet[Any] = weakref.WeakSet()
"""PyTorch's iterators with workers."""
_of_parents: Final[list[Any]] = []


def _keep_in_child() -> None:
    """Never drop an iterator that this process has inherited: PyTorch would end the workers, which are the parent's."""
    _of_parents.extend(members(_iterators))


os.register_at_fork(after_in_child=_keep_in_child)


def _stop_workers(batches: Iterator[Any]) -> None:
    """End the workers of a PyTorch iterator now, also after an error, whose traceback keeps it alive in a cycle.

    Else they would live until the garbage collector runs, perhaps in a forked child, which may not join them.
    """
    stop = getattr(batches, "_shutdown_workers", None)  # there since PyTorch 1.0; without it they end with the cycle
    if stop is not None:
        stop()
