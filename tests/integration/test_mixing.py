"""Streams by weight, epochs of any size, and what happens to the remainder, through datasets and loaders."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import Stream, StreamingDataLoader, StreamingDataset, World
from streaming.errors import OptionError
from support.numbered import checked_id, checked_ids, write_numbered
from support.ranks import Job, Layout, Report, finish, global_batches, make_loader, run_ranks, start_rank

N_A, N_B = 900, 100


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A: 900 samples from 0 on. B: 100 samples from 10,000 on."""
    folder = tmp_path_factory.mktemp("mixing")
    write_numbered(str(folder / "a"), N_A)
    write_numbered(str(folder / "b"), N_B, first=10_000)
    return {name: str(folder / name) for name in "ab"}


def _streams(places: dict[str, str], **weights: dict[str, Any]) -> list[Stream]:
    return [Stream(local=places[name], **weights.get(name, {})) for name in "ab"]


def _counts(dataset: StreamingDataset) -> tuple[Counter[int], int, int]:
    """Count how often each sample came, and how many came from A and from B."""
    counts = Counter(map(checked_id, dataset))
    n_a = sum(n for number, n in counts.items() if number < 10_000)
    return counts, n_a, sum(counts.values()) - n_a


@pytest.mark.parametrize("shuffle", [True, False])
def test_proportions_hold_exactly_and_small_streams_are_repeated_evenly(places: dict[str, str], shuffle: bool) -> None:
    """Half of 400 each: every sample of B twice, none of A more than once. Both are known before training."""
    streams = _streams(places, a={"proportion": 0.5}, b={"proportion": 0.5})
    dataset = StreamingDataset(streams=streams, epoch_size=400, shuffle=shuffle)
    for _ in range(2):
        counts, n_a, n_b = _counts(dataset)
        assert (n_a, n_b) == (200, 200)
        assert {counts[number] for number in range(10_000, 10_000 + N_B)} == {2}
        assert max(n for number, n in counts.items() if number < 10_000) == 1
    assert dataset.draws_per_stream.tolist() == [200, 200]
    assert [share.n_drawn for share in dataset.explain().streams] == [200, 200]


@pytest.mark.parametrize(
    ("weights", "options", "draws"),
    [
        ({}, {}, [900, 100]),
        ({}, {"epoch_size": 500}, [450, 50]),
        ({}, {"epoch_size": "2k"}, [1800, 200]),
        ({}, {"samples_per_epoch": 10}, [9, 1]),
        ({"a": {"proportion": 3}, "b": {"proportion": 1}}, {}, [750, 250]),
        ({"a": {"repeat": 0.5}}, {}, [450, 100]),
        ({"a": {"repeat": 0}, "b": {"repeat": 2.5}}, {}, [0, 250]),
        ({"b": {"choose": 7}}, {}, [900, 7]),
        ({"a": {"choose": 1}, "b": {"repeat": 1}}, {}, [1, 100]),
    ],
    ids=str,
)
def test_weights_come_to_exact_counts(
    places: dict[str, str], weights: dict[str, Any], options: dict[str, Any], draws: list[int]
) -> None:
    """The counts are known before training, and are delivered; the streams are left as they were."""
    streams = _streams(places, **weights)
    before = [repr(stream) for stream in streams]
    dataset = StreamingDataset(streams=streams, shuffle=True, **options)
    assert dataset.draws_per_stream.tolist() == draws
    _, n_a, n_b = _counts(dataset)
    assert [n_a, n_b] == draws
    assert dataset.epoch_size == len(dataset) == sum(draws)
    assert dataset.size == N_A + N_B
    assert [repr(stream) for stream in streams] == before


@pytest.mark.parametrize(
    ("weights", "options", "text"),
    [
        ({"a": {"proportion": 1}}, {}, "stream 1 has no proportion"),
        ({"a": {"choose": 5}}, {"epoch_size": 100}, "epoch_size=100"),
        ({"a": {"proportion": 0}, "b": {"proportion": 0}}, {}, "0"),
        ({"a": {"choose": 0}, "b": {"choose": 0}}, {}, "0"),
    ],
    ids=str,
)
def test_weights_that_contradict_each_other_are_refused(
    places: dict[str, str], weights: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    """The dataset cannot be made."""
    with pytest.raises(OptionError, match=text):
        StreamingDataset(streams=_streams(places, **weights), **options)


def test_one_stream_takes_its_weight_from_stream_config(places: dict[str, str]) -> None:
    """As the predecessor allows; the caller's dict stays as it was."""
    config = {"repeat": 2}
    dataset = StreamingDataset(local=places["b"], shuffle=True, stream_config=config)
    counts, _, _ = _counts(dataset)
    assert set(counts.values()) == {2}
    assert config == {"repeat": 2}
    with pytest.raises(OptionError, match="stream_config"):
        StreamingDataset(streams=_streams(places), stream_config=config)


def test_balanced_sampling_differs_by_epoch_and_fixed_does_not(places: dict[str, str]) -> None:
    """Another half of A in each epoch, or always the same one; without repeats in either case."""
    seen = {}
    for method in ("balanced", "fixed"):
        streams = [Stream(local=places["a"], repeat=0.5)]
        dataset = StreamingDataset(streams=streams, shuffle=True, sampling_method=method)
        seen[method] = [frozenset(map(checked_id, dataset)) for _ in range(3)]
        assert {len(ids) for ids in seen[method]} == {450}
    assert len(set(seen["balanced"])) == 3
    assert len(set(seen["fixed"])) == 1


@pytest.mark.parametrize("algorithm", ["naive", "py1s", "py2s", "py1b", "py1br", "py1e"])
def test_a_mix_resumes_exactly_under_every_shuffle(places: dict[str, str], algorithm: str) -> None:
    """Fractional shares of two streams, stopped in mid-epoch, go on with another batch size and workers."""
    options: dict[str, Any] = {
        "streams": _streams(places, a={"proportion": 0.7}, b={"proportion": 0.3}),
        "epoch_size": 333,
        "shuffle": True,
        "shuffle_algo": algorithm,
        "shuffle_block_size": 100,
        "sampling_granularity": 4,
    }
    dataset = StreamingDataset(**options)
    order = dataset.order_of(0).take(0, 333).tolist()
    loader = StreamingDataLoader(dataset, batch_size=10, collate_fn=checked_ids)
    before = [sample for batch in islice(loader, 13) for sample in batch]
    state = loader.state_dict()
    assert state is not None
    resumed = StreamingDataLoader(StreamingDataset(**options), batch_size=7, num_workers=2, collate_fn=checked_ids)
    resumed.load_state_dict(state)
    after = [sample for batch in resumed for sample in batch]
    names = [*range(N_A), *range(10_000, 10_000 + N_B)]
    assert sorted(before) == sorted(names[number] for number in order[:130])
    assert sorted(after) == sorted(names[number] for number in order[130:])
    assert len(list(resumed)) == math.ceil(333 / 7)


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_every_batching_method_on_several_layouts(places: dict[str, str], tmp_path: Path, method: str) -> None:
    """Batches hold what they should, and are the same on 1x1x0, 2x2x1 and 1x4x2; a resume in mid-epoch is exact.

    Where each rank's batch is of one stream its size is always 4, else the global batch has 16 samples.
    """
    options = {"batching_method": method, "batch_size": 4, "epoch_size": 320}
    by_layout = []
    for layout in (Layout(2, 2, 1), Layout(1, 4, 2), Layout(1, 1, 0)):
        if layout.n_ranks == 1 and method != "device_per_stream":
            options = {**options, "batch_size": 16}
        elif layout.n_ranks == 1:
            continue
        job = Job(layout, 16, None, str(tmp_path / str(layout)), options=options)
        reports = finish(
            [start_rank(job.then(remote=",".join(places.values())), r, _mixed) for r in range(layout.n_ranks)]
        )
        batches = global_batches(reports, 0)
        by_layout.append(batches)
        n_of_b = [sum(sample >= 10_000 for sample in batch) for batch in batches]
        if method == "stratified":
            assert {8} == set(n_of_b)
        elif method == "per_stream":
            assert set(n_of_b) == {0, 16}
        else:
            units = [[sample >= 10_000 for sample in batch] for report in reports for batch in report.epochs[0]]
            assert all(len(set(unit)) == 1 for unit in units)
    assert all(batches == by_layout[0] for batches in by_layout)
    assert sum(map(len, by_layout[0])) == 320


def _mixed(job: Job, rank: int) -> Report:
    """Read a rank's epoch of two streams of equal weight, stopped and resumed in the middle."""
    assert job.remote is not None

    def loader() -> StreamingDataLoader:
        streams = [Stream(local=place, proportion=1) for place in job.remote.split(",")]  # type: ignore[union-attr]
        made = make_loader(job, StreamingDataset(streams=streams, shuffle=True, **job.options))
        assert isinstance(made, StreamingDataLoader)
        return made

    first = loader()
    before = list(islice(first, 7))
    state = first.state_dict()
    assert state is not None
    second = loader()
    second.load_state_dict(state)
    return Report([before + list(second)], second.state_dict())


def test_samples_that_fill_no_batch_of_their_stream_are_left_out_with_a_warning(
    places: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Of 900 and 100 samples in batches of 64, 4 and 36 are left out, and a warning says so."""
    dataset = StreamingDataset(streams=_streams(places), batching_method="per_stream", batch_size=64, shuffle=True)
    ids = list(map(checked_id, dataset))
    assert len(ids) == len(set(ids)) == 896 + 64 == dataset.epoch_size
    assert "4 of stream 0, 36 of stream 1" in caplog.text


def _replicated(job: Job, rank: int) -> Report:
    dataset = StreamingDataset(local=job.remote, shuffle=True, **job.options)
    loader = StreamingDataLoader(
        dataset,
        batch_size=job.global_batch * job.options["replication"] // job.layout.n_ranks,
        num_workers=job.layout.n_workers,
        collate_fn=checked_ids,
    )
    batches = list(islice(loader, 5))
    state = loader.state_dict()
    assert state is not None
    loader.load_state_dict(state)
    return Report([batches + list(loader)], loader.state_dict())


def test_replicas_agree_and_the_global_batches_do_not_depend_on_them(places: dict[str, str]) -> None:
    """Global batch 24 with (ranks, replication) = (4,1), (4,2), (8,2), (8,4), (6,3): one set of ids for each group."""
    expected = None
    for n_ranks, replication in ((4, 1), (4, 2), (8, 2), (8, 4), (6, 3)):
        job = Job(Layout(1, n_ranks, 0), 24, places["a"], "", options={"replication": replication})
        reports = finish([start_rank(job, rank, _replicated) for rank in range(n_ranks)])
        for rank, report in enumerate(reports):
            assert report.epochs == reports[rank // replication * replication].epochs
            assert report.state == reports[0].state
        batches = global_batches(reports[::replication], 0)[:-1]
        expected = expected or batches
        assert batches == expected


def _lengths(job: Job, rank: int) -> Report:
    """Read a rank's epochs, and check that `len` of dataset and loader is right."""
    dataset = StreamingDataset(local=job.remote, shuffle=True, **job.options)
    loader = make_loader(job, dataset)
    said = len(loader)
    epochs = [list(loader) for _ in range(2)]
    for epoch in epochs:
        assert len(epoch) == said
        assert sum(map(len, epoch)) == len(dataset)
    assert isinstance(loader, StreamingDataLoader)
    state = loader.state_dict()
    fresh = make_loader(job, StreamingDataset(local=job.remote, shuffle=True, **job.options))
    assert isinstance(fresh, StreamingDataLoader)
    assert state is not None
    fresh.load_state_dict(state)
    assert len(list(fresh)) == said, "after a whole epoch the next one comes whole"
    return Report(epochs, state)


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
@pytest.mark.parametrize(("n_samples", "layout"), [(65, Layout(1, 2, 0)), (63, Layout(1, 4, 3)), (5, Layout(2, 4, 0))])
def test_each_remainder_does_what_it_says(tmp_path: Path, remainder: str, n_samples: int, layout: Layout) -> None:
    """`exact`: each sample once. `pad`: ranks equal, with a few repeats. `drop`: ranks equal, without repeats."""
    source = str(tmp_path / "source")
    write_numbered(source, n_samples)
    job = Job(layout, 8 * layout.n_ranks, source, "", options={"remainder": remainder})
    reports = finish([start_rank(job, rank, _lengths) for rank in range(layout.n_ranks)])
    for epoch in range(2):
        ids = [sample for report in reports for batch in report.epochs[epoch] for sample in batch]
        counts = {sum(map(len, report.epochs[epoch])) for report in reports}
        if remainder == "exact":
            assert sorted(ids) == list(range(n_samples))
            assert max(counts) - min(counts) <= 1
        elif remainder == "pad":
            assert set(ids) == set(range(n_samples))
            assert len(ids) == -(-n_samples // layout.n_ranks) * layout.n_ranks
        else:
            assert len(set(ids)) == len(ids) == n_samples // layout.n_ranks * layout.n_ranks
        assert remainder == "exact" or len(counts) == 1
    assert all(report.state == reports[0].state for report in reports)


@pytest.mark.parametrize("n_workers", [0, 1, 2, 7])
def test_drop_last_loses_the_same_three_whatever_the_workers(tmp_path: Path, n_workers: int) -> None:
    """1,003 samples give the same 100 batches of 10 every time, since batches are formed by position."""
    source = str(tmp_path / "source")
    write_numbered(source, 1003)
    dataset = StreamingDataset(local=source, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=10, num_workers=n_workers, drop_last=True, collate_fn=checked_ids)
    order = dataset.order_of(0).take(0, 1000).reshape(100, 10)
    assert [sorted(batch) for batch in loader] == np.sort(order, axis=1).tolist()


def test_explain_says_what_will_be_delivered(places: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In numbers and in words; `repr` is one line that includes the world."""
    dataset = StreamingDataset(streams=_streams(places), shuffle=True, batch_size=32)
    explanation = dataset.explain()
    assert explanation.n_samples == 1000
    assert explanation.n_batches == math.ceil(1000 / 32) == len(list(StreamingDataLoader(dataset, batch_size=32)))
    assert explanation.downloads_per_shard == 1.0
    assert 0 <= explanation.shuffle_quality <= 1
    assert "canonical node" in str(explanation)
    assert "World(rank 0 of 1" in repr(dataset)
    assert "\n" not in repr(dataset)
    monkeypatch.setenv("RANK", "3")
    assert "no usable world: RANK is set but WORLD_SIZE is not" in repr(dataset)


@pytest.mark.parametrize("algorithm", ["py1e", "naive"])
def test_a_run_starts_with_the_warning_that_explain_gives(
    places: dict[str, str], caplog: pytest.LogCaptureFixture, algorithm: str
) -> None:
    """More nodes than canonical nodes: one warning, in the words of `explain()`, which fit the shuffle."""
    dataset = StreamingDataset(
        local=places["a"],
        shuffle=True,
        shuffle_algo=algorithm,
        batch_size=2,
        num_canonical_nodes=2,
        world=World(3, 8, 1),
    )
    warning = dataset.explain().warning
    assert warning is not None
    for _ in range(2):
        next(iter(dataset))
    assert [warning in record.getMessage() for record in caplog.records] == [True]


def test_every_shuffle_is_read_ahead_of_completely(tmp_path: Path, places: dict[str, str]) -> None:
    """Cold caches, two nodes, and epochs of part of the data: all that is read has been announced."""
    for algorithm in ("naive", "py2s", "py1br"):
        job = Job(
            Layout(2, 1, 1),
            16,
            places["a"],
            str(tmp_path / algorithm),
            n_epochs=2,
            options={"shuffle_algo": algorithm, "epoch_size": 701},
        )
        reports = run_ranks(job)
        for epoch in range(2):
            ids = {sample for report in reports for batch in report.epochs[epoch] for sample in batch}
            assert len(ids) >= 701
