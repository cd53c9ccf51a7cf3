"""The resume law, as a check of anyone's own data loading: stopping and resuming changes nothing that training sees."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from streaming.dataloader import StreamingDataLoader
from streaming.dataset import StreamingDataset
from streaming.world import World

MakeLoader: TypeAlias = Callable[[World, int], Any]
SamplesOf: TypeAlias = Callable[[Any], Iterable[Hashable]]

_Epoch: TypeAlias = list[list[Hashable]]  # the samples of each batch of one rank
_LAYOUTS: Final = ((1, 0), (2, 0), (2, 2))


class ResumeLayout(NamedTuple):
    """Ranks of a job, and workers of each rank's loader."""

    n_ranks: int
    n_workers: int

    def __str__(self) -> str:
        return f"{self.n_ranks} ranks with {self.n_workers} workers each"


def assert_resumes_exactly(
    make_loader: MakeLoader,
    samples_of: SamplesOf,
    *,
    layouts: Sequence[tuple[int, int]] = _LAYOUTS,
    stops: Sequence[int] | None = None,
) -> None:
    """Check that a run that stops and resumes gives the same batches as one that never stopped.

    `make_loader(world, num_workers)` returns a new loader for that rank: anything that can be iterated once an epoch
    and has `state_dict()` and `load_state_dict(state)`. A StreamingDataset is read by a StreamingDataLoader of its
    `batch_size`. `samples_of(batch)` returns a value for each sample of a batch by which it is recognised, such as
    `batch["id"].tolist()`.

    `layouts` are pairs (ranks, workers) whose global batches, batch size × ranks, must be equal. In each of them a run
    stops after each number of batches in `stops` (None: at both ends and in the middle of an epoch), and resumes in
    the same layout and in the next one. There every rank must get exactly the batches that an unbroken run in that
    layout gives it: the rest of the epoch, and the whole next epoch. The samples received before the stop must be
    those that the unbroken run receives by then; every rank must report the same state; the state must survive JSON.

    Ranks run in this process, one after the other; workers are real. The data is read many times over, so take a small
    dataset or a small `epoch_size`. Raises AssertionError, which names the first difference.
    """
    runs = [_LayoutRuns(make_loader, samples_of, ResumeLayout(*layout)) for layout in layouts]
    sizes = {str(each.layout): each.global_batch for each in runs}
    if len(set(sizes.values())) > 1:
        raise AssertionError(f"layouts must have the same global batch, batch size × ranks; got {sizes}")
    for number, stopped in enumerate(runs):
        for stop in stopped.default_stops if stops is None else stops:
            state, before = stopped.until(stop)
            for resumed in dict.fromkeys((stopped, runs[(number + 1) % len(runs)])):
                where = f"stopped after {stop} batches on {stopped.layout}, resumed on {resumed.layout}"
                resumed.check_before(before, stop, where)
                resumed.check_after(state, stop, where)


class _LayoutRuns:
    """Runs in one layout, to be compared with the unbroken run."""

    def __init__(self, make_loader: MakeLoader, samples_of: SamplesOf, layout: ResumeLayout) -> None:
        self.layout = layout
        self._make_loader, self._samples_of = make_loader, samples_of
        self._unbroken = [self._run(rank, n_epochs=2)[0] for rank in range(layout.n_ranks)]
        self._n_batches = max(len(first) for first, _ in self._unbroken)
        if not self._n_batches:
            raise AssertionError(f"on {layout}, an epoch has no batch; give it more samples")

    @property
    def global_batch(self) -> int:
        """Samples of the first batch, over all ranks."""
        return sum(len(batch) for first, _ in self._unbroken for batch in first[:1])

    @property
    def default_stops(self) -> list[int]:
        """Batches after which to stop: none, one, half of them, all but one, all."""
        n = self._n_batches
        return sorted({0, 1, n // 2, n - 1, n})

    def until(self, stop: int) -> tuple[Any, list[_Epoch]]:
        """The state after so many batches, and what each rank has received by then."""
        if not 0 <= stop <= self._n_batches:
            raise AssertionError(f"cannot stop after {stop} of {self._n_batches} batches on {self.layout}")
        epochs, states = [], []
        for rank in range(self.layout.n_ranks):
            (epoch,), state = self._run(rank, n_batches=stop)
            epochs.append(epoch)
            states.append(state)
        for rank, state in enumerate(states):
            if state != states[0]:
                raise AssertionError(
                    f"after {stop} batches on {self.layout}, rank {rank} reports another state than rank 0:\n"
                    f"{state}\n{states[0]}"
                )
        try:
            return json.loads(json.dumps(states[0])), epochs
        except (TypeError, ValueError) as error:
            raise AssertionError(f"the state does not survive JSON: {error}\n{states[0]}") from error

    def check_before(self, epochs: list[_Epoch], stop: int, where: str) -> None:
        """What was received before the stop is what the unbroken run receives by then, over all ranks.

        Except in the last batch, where layouts repeat and leave out different samples.
        """
        n_full = min(stop, self._n_batches - 1)
        found = Counter(_samples(epochs, n_full))
        due = Counter(_samples([first for first, _ in self._unbroken], n_full))
        if found != due:
            raise AssertionError(
                f"{where}: before the stop, samples {list((found - due).elements())} came, which would come later "
                f"without it, and {list((due - found).elements())} did not"
            )

    def check_after(self, state: Any, stop: int, where: str) -> None:
        """From this state on, every rank gets the rest of the unbroken run."""
        for rank, (first, second) in enumerate(self._unbroken):
            due = [first[stop:], second] if stop < self._n_batches else [second]
            found, _ = self._run(rank, n_epochs=len(due), state=state)
            for number, (due_epoch, found_epoch) in enumerate(zip(due, found)):
                difference = _first_difference(due_epoch, found_epoch)
                if difference is not None:
                    raise AssertionError(f"{where}: rank {rank}, epoch {number} after it: {difference}")

    def _run(
        self, rank: int, *, n_epochs: int = 1, n_batches: int | None = None, state: Any = None
    ) -> tuple[list[_Epoch], Any]:
        """Read epochs from a new loader, `n_batches` of each; the samples, and the state at the end."""
        n_ranks, n_workers = self.layout
        loader = self._make_loader(World(rank, n_ranks, n_ranks, source="assert_resumes_exactly"), n_workers)
        if isinstance(loader, StreamingDataset):
            loader = StreamingDataLoader(
                loader, batch_size=loader.batch_size or 1, num_workers=n_workers, collate_fn=list
            )
        try:
            if state is not None:
                loader.load_state_dict(state)
            epochs = []
            for _ in range(n_epochs):
                batches = iter(loader)
                epochs.append([list(self._samples_of(batch)) for batch in islice(batches, n_batches)])
            return epochs, loader.state_dict()
        finally:
            close = getattr(getattr(loader, "dataset", loader), "close", None)
            if close is not None:
                close()


def _samples(epochs: list[_Epoch], n_batches: int) -> list[Hashable]:
    """The samples of the first batches of all ranks."""
    return [sample for epoch in epochs for batch in epoch[:n_batches] for sample in batch]


def _first_difference(due: _Epoch, found: _Epoch) -> str | None:
    for number, (due_batch, found_batch) in enumerate(zip(due, found)):
        if due_batch != found_batch:
            return f"batch {number} is {found_batch}, and would have been {due_batch} without the stop"
    if len(due) != len(found):
        return f"{len(found)} batches came, and {len(due)} would have come without the stop"
    return None
