"""Order without shuffle, and batches of an exact composition, in real rank processes with real loader workers."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler, Subset

from streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset, World
from streaming.errors import OptionError, StateError
from support.numbered import checked_id, checked_ids, write_numbered
from support.ranks import Job, Layout, Report, finish, global_batches, make_loader, start_rank

FIRSTS = {"a": 0, "b": 1000, "c": 2000}
SIZES = {"a": 130, "b": 45, "c": 75}
EVERY = [FIRSTS[name] + number for name in FIRSTS for number in range(SIZES[name])]
LAYOUTS = [Layout(1, 1, 0), Layout(1, 2, 2), Layout(1, 3, 0), Layout(2, 2, 2), Layout(1, 4, 2)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A: 130 samples from 0 on. B: 45 from 1,000 on. C: 75 from 2,000 on."""
    folder = tmp_path_factory.mktemp("order")
    for name, n in SIZES.items():
        write_numbered(str(folder / name), n, first=FIRSTS[name])
    return {name: str(folder / name) for name in SIZES}


def streams_of(places: dict[str, str], weights: dict[str, dict[str, Any]]) -> list[Stream]:
    return [Stream(local=place, **weights.get(name, {})) for name, place in places.items()]


def rank_task(job: Job, rank: int) -> Report:
    """Read epochs like a training process, from streams with weights; the job's `cache` is not used."""
    options = {**job.options, "batch_size": job.global_batch // job.layout.n_ranks}
    streams = streams_of(options.pop("places"), options.pop("weights"))
    dataset = StreamingDataset(streams=streams, **options)
    loader = make_loader(job, dataset)
    if job.state is not None:
        dataset.load_state_dict(job.state)
    epochs = [list(loader) for _ in range(job.n_epochs - 1)]
    epochs.append(list(islice(loader, job.n_batches)))
    if isinstance(loader, StreamingDataLoader):
        return Report(epochs, loader.state_dict())
    n_samples = sum(map(len, epochs[-1])) * job.layout.n_ranks
    return Report(epochs, dataset.state_dict(n_samples, from_beginning=False))


def run(job: Job) -> list[Report]:
    return finish([start_rank(job, rank, rank_task) for rank in range(job.layout.n_ranks)])


def job_of(
    layout: Layout, global_batch: int, places: dict[str, str], weights: Any = None, own_loader: bool = True, **more: Any
) -> Job:
    options = {"places": places, "weights": weights or {}, **more}
    return Job(layout, global_batch, None, "", own_loader=own_loader, options=options)


# --- without shuffle


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_position_is_the_number_of_its_sample(places: dict[str, str], n_workers: int, batch_size: int) -> None:
    """For one rank `list(dataset)` is `dataset[:]`, in every epoch, and so are the batches of both loaders."""
    dataset = StreamingDataset(streams=streams_of(places, {}), batch_size=batch_size)
    assert list(map(checked_id, dataset[:])) == EVERY
    for _ in range(2):
        assert list(map(checked_id, dataset)) == EVERY
    for kind in (DataLoader, StreamingDataLoader):
        loader = kind(dataset, batch_size=batch_size, num_workers=n_workers, collate_fn=checked_ids)
        assert [number for batch in loader for number in batch] == EVERY


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("own_loader", [True, False], ids=["own loader", "plain loader"])
def test_ranks_take_turns_as_under_a_distributed_sampler(
    places: dict[str, str], layout: Layout, own_loader: bool
) -> None:
    """On one machine each rank gets what DistributedSampler gives, but for padding; several cut each batch first."""
    reports = run(job_of(layout, 12, places, own_loader=own_loader))
    ids = [[number for batch in report.epochs[0] for number in batch] for report in reports]
    per_node = layout.ranks_per_node
    if layout.n_nodes == 1:
        for rank, mine in enumerate(ids):
            everything: Any = range(len(EVERY))
            sampler = DistributedSampler[int](everything, layout.n_ranks, rank, shuffle=False, drop_last=True)
            expected = [EVERY[number] for number in sampler]
            assert mine[: len(expected)] == expected
    for k, batch in enumerate(zip(*(report.epochs[0] for report in reports), strict=True)):
        pieces = [batch[node * per_node : (node + 1) * per_node] for node in range(layout.n_nodes)]
        turns = [number for piece in pieces for together in zip(*piece, strict=True) for number in together]
        expected = EVERY[12 * k : 12 * (k + 1)]
        assert turns[: len(expected)] == expected or len(expected) < 12  # the last is cut otherwise, with padding
        assert set(expected) <= set(turns)


WEIGHTS = [
    ({}, {}, None),
    ({"a": {"repeat": 2}, "b": {"choose": 20}, "c": {"repeat": 0.4}}, {}, [260, 20, 30]),
    ({"a": {"proportion": 1}, "b": {"proportion": 2}, "c": {"proportion": 1}}, {"epoch_size": 240}, [60, 120, 60]),
    ({}, {"epoch_size": 100}, [52, 18, 30]),
]


@pytest.mark.parametrize(("weights", "more", "draws"), WEIGHTS, ids=str)
def test_streams_come_one_after_the_other_pass_by_pass(
    places: dict[str, str], weights: Any, more: dict[str, Any], draws: list[int] | None
) -> None:
    """Whole passes are as stored, and so is what a partial pass takes; it comes last of its stream."""
    dataset = StreamingDataset(streams=streams_of(places, weights), batch_size=5, **more)
    draws = draws or list(SIZES.values())
    assert dataset.draws_per_stream.tolist() == draws
    for _ in range(2):
        left = list(map(checked_id, dataset))
        for name, n_drawn in zip(SIZES, draws):
            mine, left = left[:n_drawn], left[n_drawn:]
            stored = list(range(FIRSTS[name], FIRSTS[name] + SIZES[name]))
            while mine:
                one_pass, mine = mine[: SIZES[name]], mine[SIZES[name] :]
                assert one_pass == sorted(set(one_pass) & set(stored))
        assert not left


@pytest.mark.parametrize(("weights", "more", "draws"), WEIGHTS, ids=str)
def test_an_unshuffled_run_goes_on_with_other_ranks(
    places: dict[str, str], weights: Any, more: dict[str, Any], draws: list[int] | None
) -> None:
    """Stopped after 4 batches of 12 on 2 ranks, resumed on 1, 3 and 4: each global batch is what one rank would see."""
    alone = StreamingDataset(streams=streams_of(places, weights), batch_size=12, **more)
    whole = list(map(checked_id, alone))
    assert len(whole) == sum(draws or SIZES.values())
    first = run(job_of(Layout(1, 2, 2), 12, places, weights, **more).then(n_batches=4))
    assert global_batches(first, 0) == [sorted(whole[12 * k : 12 * k + 12]) for k in range(4)]
    for layout in (Layout(1, 1, 2), Layout(1, 3, 0), Layout(2, 2, 2)):
        rest = global_batches(run(job_of(layout, 12, places, weights, **more).then(state=first[0].state)), 0)
        assert rest[:-1] == [sorted(whole[12 * k : 12 * k + 12]) for k in range(4, 3 + len(rest))]
        padding = Counter(rest[-1]) - Counter(whole[12 * (3 + len(rest)) :])
        assert padding.total() < layout.n_ranks


@pytest.mark.parametrize("remainder", ["pad", "exact"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_evaluation_that_interleaves_what_ranks_gathered_gets_the_stored_order(
    places: dict[str, str], n_ranks: int, remainder: str
) -> None:
    """Stack what R ranks predicted, transpose, flatten, cut at the size: one prediction for each sample, in order."""
    predicted = []
    for rank in range(n_ranks):
        world = World(rank=rank, num_ranks=n_ranks, ranks_per_node=n_ranks)
        dataset = StreamingDataset(streams=streams_of(places, {}), batch_size=8, remainder=remainder, world=world)
        loader = StreamingDataLoader(dataset, batch_size=8, collate_fn=checked_ids)
        predicted.append([number for batch in loader for number in batch])
        assert len(dataset) == len(predicted[-1])
    longest = max(map(len, predicted))
    gathered = torch.tensor([ids + [-1] * (longest - len(ids)) for ids in predicted])
    assert gathered.T.reshape(-1)[: len(EVERY)].tolist() == EVERY


def test_concatenated_evaluation_sets_and_subsets_number_samples_alike(places: dict[str, str]) -> None:
    """Streams, PyTorch's ConcatDataset of folders, and a Subset of either count through the same numbers."""
    dataset = StreamingDataset(streams=streams_of(places, {}), batch_size=4)
    concatenated: ConcatDataset[Any] = ConcatDataset([LocalDataset(place) for place in places.values()])
    stored = list(map(checked_id, dataset))
    assert [checked_id(concatenated[number]) for number in range(len(concatenated))] == stored
    chosen = [249, 0, 130, 174, 175, 3]
    for source in (dataset, concatenated):
        subset: Subset[Any] = Subset(source, chosen)
        loader = DataLoader(subset, batch_size=4, num_workers=2, collate_fn=checked_ids)
        assert [number for batch in loader for number in batch] == [stored[number] for number in chosen]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_unshuffled_batches_of_one_stream_keep_each_streams_order(places: dict[str, str], n_ranks: int) -> None:
    """`per_stream` without shuffle: global batches of one stream, each stream from its first sample on, in turns."""
    ids = []
    for rank in range(n_ranks):
        world = World(rank=rank, num_ranks=n_ranks, ranks_per_node=n_ranks)
        dataset = StreamingDataset(
            streams=streams_of(places, {}), batch_size=12 // n_ranks, batching_method="per_stream", world=world
        )
        ids.append(list(map(checked_id, dataset)))
    everything = [number for together in zip(*ids, strict=True) for number in together]
    batches = np.array(everything).reshape(-1, 12) // 1000
    assert (batches == batches[:, :1]).all()
    for name, n in SIZES.items():
        mine = [number for number in everything if number // 1000 == FIRSTS[name] // 1000]
        assert mine == list(range(FIRSTS[name], FIRSTS[name] + n // 12 * 12))


# --- exact composition

EXACT: dict[str, Any] = {"batching_method": "stratified", "batch_composition": "exact"}
THREE = {"a": {"proportion": 2}, "b": {"proportion": 1}, "c": {"proportion": 1}}


def composed(batch: list[int]) -> list[int]:
    """Return the stream of each sample of a batch."""
    return [number // 1000 for number in batch]


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_of_exact_composition_on_several_layouts(places: dict[str, str], shuffle: bool) -> None:
    """Each rank's batch has 2 : 1 : 1, stream by stream; global batches are one set; a resume elsewhere is exact."""
    options: dict[str, Any] = {**EXACT, "shuffle": shuffle, "epoch_size": 300}
    known = None
    states: list[Any] = []
    for layout in (Layout(1, 1, 0), Layout(1, 2, 2), Layout(2, 2, 1), Layout(1, 4, 2)):
        job = job_of(layout, 32, places, THREE, **options)
        reports = run(job.then(n_epochs=2, n_batches=3))
        each = 32 // layout.n_ranks // 4
        states.append(reports[0].state)
        for report in reports:
            assert report.state == states[-1]
            for batch in report.epochs[0] + report.epochs[1]:
                assert composed(batch) == [0] * 2 * each + [1] * each + [2] * each
        batches = global_batches(reports, 0), global_batches(reports, 1)
        assert [len(epoch) for epoch in batches] == [9, 3]
        known = known or batches
        assert batches == known
    whole = run(job_of(Layout(1, 1, 0), 32, places, THREE, **options).then(n_epochs=2))
    for layout in (Layout(1, 1, 2), Layout(1, 4, 0)):
        rest = run(job_of(layout, 32, places, THREE, **options).then(state=states[1]))
        assert global_batches(rest, 0) == global_batches(whole, 1)[3:]


@pytest.mark.parametrize("own_loader", [True, False], ids=["own loader", "plain loader"])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_an_exact_epoch_ends_with_its_last_whole_batch(
    places: dict[str, str], own_loader: bool, n_workers: int
) -> None:
    """A state that was saved after the last batch, before the loader was exhausted, goes on with the next epoch."""
    job = job_of(Layout(1, 2, n_workers), 32, places, THREE, own_loader=own_loader, **EXACT, epoch_size=300)
    ended = run(job.then(n_batches=9))
    assert [len(report.epochs[0]) for report in ended] == [9, 9]
    after = run(job.then(state=ended[0].state))
    assert [len(report.epochs[0]) for report in after] == [9, 9]
    assert global_batches(after, 0) == global_batches(run(job.then(n_epochs=2)), 1)


def test_what_an_exact_composition_leaves_out_is_known_before(
    places: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """`len`, `explain()`, a warning, and refusals that name what to change."""
    streams = streams_of({name: places[name] for name in "ab"}, {})
    dataset = StreamingDataset(streams=streams, batch_size=8, shuffle=True, **EXACT)  # 5.9 : 2.1 is 6 : 2
    assert dataset.epoch_size == 43 * 4
    assert len(dataset) == 43 * 4 // 8 * 8 == len(list(dataset))
    told = dataset.explain()
    assert [(share.n_in_batch, share.n_left_out) for share in told.streams] == [(6, 1), (2, 2)]
    assert (told.n_batches, told.n_dropped, told.n_padding) == (21, 4, 0)
    assert "6 in each batch of a rank; 1 more are left out, as other streams give too few beside them" in str(told)
    assert "dropped: 4 samples, which fill no whole batch" in str(told)
    assert "1 of stream 0, 2 of stream 1" in caplog.text
    with pytest.raises(OptionError, match=r"stream 1 .* a batch would have none"):
        StreamingDataset(streams=streams, batch_size=1, **EXACT)
    with pytest.raises(OptionError, match="give the dataset its batch_size"):
        StreamingDataset(streams=streams, **EXACT)
    with pytest.raises(OptionError, match="needs batching_method='stratified'"):
        StreamingDataset(streams=streams, batch_size=8, batch_composition="exact")
    with pytest.raises(OptionError, match="remainder='exact'"):
        StreamingDataset(streams=streams, batch_size=8, remainder="exact", **EXACT)
    state = dataset.state_dict(16, from_beginning=True)
    proportional = StreamingDataset(streams=streams, batch_size=8, shuffle=True, batching_method="stratified")
    with pytest.raises(StateError, match="batch_composition: saved 'exact 3:1', now 'proportional'"):
        proportional.load_state_dict(state)
    StreamingDataset(streams=streams, batch_size=4, shuffle=True, **EXACT).load_state_dict(state)


@pytest.mark.parametrize("own_loader", [True, False], ids=["own loader", "plain loader"])
def test_an_epoch_whose_rest_is_dropped_ends_with_its_last_batch(places: dict[str, str], own_loader: bool) -> None:
    """130 samples on 4 ranks drop 2: a state after the last batch goes on with the next epoch, not an empty one."""
    places = {"a": places["a"]}
    job = job_of(Layout(1, 4, 0), 16, places, own_loader=own_loader, shuffle=True, remainder="drop")
    ended = run(job.then(n_batches=8))
    assert sum(map(len, ended[0].epochs[0])) == 32
    after = run(job.then(state=ended[0].state))
    assert global_batches(after, 0) == global_batches(run(job.then(n_epochs=2)), 1)
