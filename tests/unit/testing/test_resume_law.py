"""The resume law: our loaders keep it in every layout, and each way to break it is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming import StreamingDataLoader, StreamingDataset
from streaming.testing import assert_resumes_exactly
from streaming.world import World
from support.numbered import checked_id, checked_ids, write_numbered

GLOBAL_BATCH = 4
N_BATCHES = 5


class Loader:
    """Deals the numbers of an epoch to ranks, batch by batch, as any loader might."""

    def __init__(self, world: World, n_workers: int) -> None:
        self.world, self.n_workers = world, n_workers
        self.epoch = self.n_consumed = 0

    def __iter__(self) -> Iterator[list[int]]:
        size = GLOBAL_BATCH // self.world.num_ranks
        numbers = self.order(self.epoch)
        while self.n_consumed < len(numbers):
            begin = self.n_consumed + size * self.world.rank
            self.n_consumed += GLOBAL_BATCH
            yield numbers[begin : begin + size]
        self.epoch, self.n_consumed = self.epoch + 1, 0

    def order(self, epoch: int) -> list[int]:
        n = GLOBAL_BATCH * N_BATCHES
        return [(7 * number + epoch) % n for number in range(n)]

    def state_dict(self) -> Any:
        if self.n_consumed == GLOBAL_BATCH * N_BATCHES:
            return {"epoch": self.epoch + 1, "n_consumed": 0}
        return {"epoch": self.epoch, "n_consumed": self.n_consumed}

    def load_state_dict(self, state: Any) -> None:
        self.epoch, self.n_consumed = state["epoch"], state["n_consumed"]


def test_a_loader_of_any_kind_may_keep_the_law() -> None:
    """Nothing is asked of it but to iterate, and to give and take its state."""
    assert_resumes_exactly(Loader, list)
    assert_resumes_exactly(Loader, list, layouts=[(4, 0), (1, 3)], stops=[2])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume") / "data"
    write_numbered(str(folder), 50, size_limit=1000)
    return folder


def test_a_streaming_loader_keeps_the_law(data: Path) -> None:
    """With real workers, shuffled, and with a last batch that is filled up."""

    def make_loader(world: World, num_workers: int) -> StreamingDataLoader:
        dataset = StreamingDataset(local=str(data), shuffle=True, world=world)
        return StreamingDataLoader(
            dataset, batch_size=12 // world.num_ranks, num_workers=num_workers, collate_fn=checked_ids
        )

    assert_resumes_exactly(make_loader, list, layouts=[(1, 0), (2, 2), (3, 0)], stops=[0, 3, 5])


def test_a_dataset_is_read_by_a_loader_of_ours(data: Path) -> None:
    """Of the batch size that it was given."""

    def make_dataset(world: World, num_workers: int) -> StreamingDataset:
        return StreamingDataset(local=str(data), batch_size=10 // world.num_ranks, world=world)

    assert_resumes_exactly(
        make_dataset, lambda batch: map(checked_id, batch), layouts=[(1, 0), (2, 0)], stops=[0, 3, 5]
    )


class Forgets(Loader):
    def load_state_dict(self, state: Any) -> None:
        """Begin anew, whatever was said."""


class CountsWhatWorkersHavePrepared(Loader):
    def state_dict(self) -> Any:
        state = super().state_dict()
        return {**state, "n_consumed": state["n_consumed"] + GLOBAL_BATCH * (self.n_workers > 0)}


class KnowsItsRankOnly(Loader):
    def state_dict(self) -> Any:
        return {**super().state_dict(), "rank": self.world.rank}


class KeepsWhatIsNoJson(Loader):
    def state_dict(self) -> Any:
        return {**super().state_dict(), "generator": object()}


class GoesOnAfterTheEnd(Loader):
    def state_dict(self) -> Any:
        return {"epoch": self.epoch, "n_consumed": self.n_consumed}


class ShufflesByWorkers(Loader):
    def order(self, epoch: int) -> list[int]:
        numbers = super().order(epoch)
        return numbers[::-1] if self.n_workers else numbers


class ForgetsTheEpoch(Loader):
    def __iter__(self) -> Iterator[list[int]]:
        yield from super().__iter__()
        self.epoch += self.is_resumed

    is_resumed = False

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.is_resumed = True


class HasFixedBatches(Loader):
    def __iter__(self) -> Iterator[list[int]]:
        for batch in super().__iter__():
            yield batch * self.world.num_ranks


class IsEmpty(Loader):
    def order(self, epoch: int) -> list[int]:
        return []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Forgets, r"stopped after 1 batches on 1 ranks with 0 workers.*rank 0, epoch 0 after it: batch 0 is \[0, 7"),
        (CountsWhatWorkersHavePrepared, "with 2 workers each, resumed on .*: batch 0 is"),
        (KnowsItsRankOnly, "rank 1 reports another state than rank 0"),
        (KeepsWhatIsNoJson, "does not survive JSON"),
        (GoesOnAfterTheEnd, "stopped after 5 batches .*: 0 batches came, and 5 would have come"),
        (ShufflesByWorkers, r"before the stop, samples \[.*\] came, which would come later"),
        (ForgetsTheEpoch, "epoch 1 after it: batch 0 is"),
        (HasFixedBatches, "same global batch"),
        (IsEmpty, "no batch"),
    ],
)
def test_a_loader_that_breaks_the_law_is_found(broken: Callable[[World, int], Loader], words: str) -> None:
    """And the error says what came and what should have, where."""
    with pytest.raises(AssertionError, match=words):
        assert_resumes_exactly(broken, list)


def test_a_stop_after_the_end_is_refused() -> None:
    """There is nothing to compare."""
    with pytest.raises(AssertionError, match="cannot stop after 6 of 5 batches"):
        assert_resumes_exactly(Loader, list, stops=[6])
