"""Many datasets, loaders, ranks and jobs run side by side, and none disturbs another."""

from __future__ import annotations

import gc
import math
import os
import random
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import ClosedError, OptionError
from support.numbered import checked_id, checked_ids, write_numbered
from support.ranks import Job, Layout, Report, finish, global_batches, make_dataset, make_loader, run_ranks, start_rank

N = 503


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("coexistence") / "source"
    write_numbered(str(folder), N)
    return str(folder)


def test_two_jobs_read_one_folder_without_remote(source: str) -> None:
    """Any number of jobs may read one prepared folder, and leave it as it is."""
    before = {name: os.stat(os.path.join(source, name)).st_mtime_ns for name in os.listdir(source)}
    jobs = [Job(Layout(1, 2, 1), 8, None, source, options={"shuffle_seed": seed}) for seed in (1, 2)]
    reports = finish([start_rank(job, rank, _run_local) for job in jobs for rank in range(2)])
    for pair in (reports[:2], reports[2:]):
        assert {sample for batch in global_batches(pair, 0) for sample in batch} == set(range(N))
    assert {name: os.stat(os.path.join(source, name)).st_mtime_ns for name in os.listdir(source)} == before


def _run_local(job: Job, rank: int) -> Report:
    dataset = StreamingDataset(local=job.cache, shuffle=True, **job.options)
    return Report([list(make_loader(job, dataset))], None)


def test_two_thousand_datasets_under_a_limit_of_256_descriptors(source: str) -> None:
    """They are read, and closed or dropped: no descriptor, map, thread or process stays."""
    with StreamingDataset(local=source) as dataset:  # makes what a process makes once
        checked_id(dataset[0])
    gc.collect()
    process = psutil.Process()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_open, n_threads = process.num_fds(), process.num_threads()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        for number in range(2000):
            dataset = StreamingDataset(local=source, shuffle=bool(number % 3))
            checked_id(dataset[number % N])
            next(iter(dataset))
            if number % 2:
                dataset.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    del dataset
    gc.collect()
    assert process.num_fds() <= n_open + 5
    assert process.num_threads() <= n_threads + 5


def test_a_dataset_lives_as_long_as_an_iterator_over_it(source: str, tmp_path: Path) -> None:
    """Nobody else needs to hold it: read in place or through a cache, by itself or by either loader."""
    for remote, local in ((None, source), (source, str(tmp_path / "cache"))):
        assert sum(1 for _ in StreamingDataset(remote=remote, local=local)) == N
        for kind in (DataLoader, StreamingDataLoader):
            batches = kind(StreamingDataset(remote=remote, local=local), batch_size=8, collate_fn=len)
            assert sum(iter(batches)) == N
        samples = iter(StreamingDataset(remote=remote, local=local, shuffle=True))
        gc.collect()
        assert len(list(samples)) == N


def test_cached_datasets_free_what_they_hold(source: str, tmp_path: Path) -> None:
    """100 datasets over a remote, each with a connection and maps, are closed or dropped."""
    gc.collect()
    process = psutil.Process()
    n_open, n_threads, n_maps = process.num_fds(), process.num_threads(), len(process.memory_maps(grouped=False))

    def open_and_read(number: int) -> None:
        dataset = StreamingDataset(remote=source, local=str(tmp_path / f"cache{number % 3}"), shuffle=True)
        checked_id(dataset[number])
        list(islice(dataset, 60))
        if number % 2:
            dataset.close()

    for number in range(100):
        open_and_read(number)
    gc.collect()
    assert process.num_fds() <= n_open + 5
    assert process.num_threads() <= n_threads + 5
    assert len(process.memory_maps(grouped=False)) <= n_maps + 50


def test_a_closed_dataset_says_so_and_touches_nothing(source: str, tmp_path: Path) -> None:
    """Its descriptor's number may be another file's by then."""
    dataset = StreamingDataset(local=source, shuffle=True)
    next(iter(dataset))
    dataset.close()
    dataset.close()
    others = [(tmp_path / f"{number}").open("w+b") for number in range(20)]
    for use in (lambda: iter(dataset), lambda: dataset[0], lambda: dataset.set_epoch(3)):
        with pytest.raises(ClosedError, match="closed"):
            use()
    for file in others:
        file.seek(0)
        assert file.read() == b""
        file.close()


def test_many_open_shards_stay_within_the_descriptors(tmp_path: Path) -> None:
    """Three datasets are read in place, each of more shards than a limit of 256 descriptors allows."""
    write_numbered(str(tmp_path / "source"), 400, size_limit=150)
    datasets = [StreamingDataset(local=str(tmp_path / "source"), shuffle=True, shuffle_seed=seed) for seed in range(3)]
    assert datasets[0].num_shards > 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        for _ in range(2):
            for samples in zip(*datasets):
                assert len({checked_id(sample) for sample in samples}) >= 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_everything_is_written_below_the_cache_that_the_user_named(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a temporary directory, data is read in place and through a named cache; else `local` is asked for."""
    write_numbered(str(tmp_path / "zipped"), 50, compression="zstd")
    monkeypatch.setenv("TMPDIR", "/dev/null/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null/nowhere")
    assert checked_id(StreamingDataset(local=source)[5]) == 5
    cache = tmp_path / "cache"
    for remote, n_samples in ((source, N), (str(tmp_path / "zipped"), 50)):
        dataset = StreamingDataset(remote=remote, local=str(cache / str(n_samples)), shuffle=True)
        assert sorted(map(checked_id, dataset)) == list(range(n_samples))
    with pytest.raises(OptionError, match="give local="):
        StreamingDataset(local=str(tmp_path / "zipped"))


def test_loaders_in_two_threads_over_one_dataset_each_have_their_epochs(source: str) -> None:
    """Workers join the epoch of the loader that started them, whatever another thread starts meanwhile."""
    dataset = StreamingDataset(local=source, shuffle=True)
    found: list[list[int]] = []

    def run() -> None:
        for _ in range(4):
            loader = StreamingDataLoader(dataset, batch_size=8, num_workers=2, collate_fn=checked_ids)
            found.append([sample for batch in loader for sample in batch])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 12
    assert all(sorted(ids) == list(range(N)) for ids in found)
    assert dataset.next_epoch == 12
    assert len({tuple(ids) for ids in found}) == 12


def _seeds_in_chaos(job: Job, rank: int) -> Report:
    """Run a rank whose global generators have a seed of their own, and must come out untouched."""
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]
    dataset = make_dataset(job, rank)
    ids = list(map(checked_id, dataset))
    dataset.load_state_dict(dataset.state_dict(0, from_beginning=False))
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]
    assert before == after
    return Report([[ids]], None)


def test_global_random_state_is_neither_read_nor_changed(source: str, tmp_path: Path) -> None:
    """Four ranks with different seeds agree on the order, and none of their generators has moved."""
    job = Job(Layout(1, 4, 0), 4, source, str(tmp_path / "cache"))
    reports = finish([start_rank(job, rank, _seeds_in_chaos) for rank in range(4)])
    assert {sample for report in reports for sample in report.epochs[0][0]} == set(range(N))
    again = run_ranks(job)
    assert [report.epochs[0][0] for report in reports] == [
        [sample for batch in report.epochs[0] for sample in batch] for report in again
    ]


def test_no_collective_and_no_process_group(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.distributed's functions raise while a dataset is built, iterated, saved and restored."""
    import torch.distributed as distributed

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a collective was called")

    for name in (
        "init_process_group",
        "destroy_process_group",
        "new_group",
        "barrier",
        "broadcast",
        "all_gather",
        "all_gather_object",
        "all_reduce",
        "broadcast_object_list",
    ):
        monkeypatch.setattr(distributed, name, refuse)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    dataset = StreamingDataset(remote=source, local=str(tmp_path / "cache"), shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=1, collate_fn=checked_ids)
    assert len(list(loader)) == len(loader) == math.ceil(math.ceil(N / 3) / 4)
    state = loader.state_dict()
    assert state is not None
    loader.load_state_dict(state)
    list(islice(loader, 2))


def test_an_initialised_process_group_gives_the_rank(source: str, tmp_path: Path) -> None:
    """Spawned workers, which cannot see the group, learn the rank, too."""
    import torch.distributed as distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        dataset = StreamingDataset(local=source, shuffle=True)
        loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn", collate_fn=checked_ids)
        assert sorted(sample for batch in loader for sample in batch) == list(range(N))
    finally:
        distributed.destroy_process_group()


def test_interleaved_datasets_do_not_disturb_each_other(source: str, tmp_path: Path) -> None:
    """Three datasets, two of them with one cache, give a batch each in turn; now and then one is made anew."""
    seeds = (1, 2, 3)

    def loader(number: int) -> Iterator[list[int]]:
        cache = str(tmp_path / ("shared" if number < 2 else "own"))
        dataset = StreamingDataset(remote=source, local=cache, shuffle=True, shuffle_seed=seeds[number])
        return iter(
            StreamingDataLoader(dataset, batch_size=5, num_workers=2, persistent_workers=False, collate_fn=checked_ids)
        )

    solo = [list(loader(number)) for number in range(3)]
    running = [loader(number) for number in range(3)]
    at = [0, 0, 0]
    for step in range(300):
        if step % 50 == 49:
            number = step // 50 % 3
            running[number], at[number] = loader(number), 0
        number = step % 3
        if at[number] < len(solo[number]):
            assert next(running[number]) == solo[number][at[number]]
            at[number] += 1


def _uneven(job: Job, rank: int) -> Report:
    """Read five epochs; rank 1 is late at each boundary, rank 2 leaves its second epoch early."""
    loader = make_loader(job, make_dataset(job, rank))
    epochs = []
    for epoch in range(5):
        if rank == 1:
            time.sleep(0.5)
        epochs.append(list(islice(loader, 3 if (rank, epoch) == (2, 1) else None)))
    return Report(epochs, None)


def test_epochs_need_no_rendezvous(source: str, tmp_path: Path) -> None:
    """A late rank and one that leaves early hold nobody up, and each epoch is complete."""
    job = Job(Layout(1, 4, 3), 28, source, str(tmp_path / "cache"))
    reports = finish([start_rank(job, rank, _uneven) for rank in range(4)])
    for epoch in (0, 2, 3, 4):
        seen = [sample for report in reports for batch in report.epochs[epoch] for sample in batch]
        assert set(seen) == set(range(N))
        assert len(seen) == -(-N // 4) * 4
    assert len(reports[2].epochs[1]) == 3


class ByItem(StreamingDataset):
    """Overrides `__getitem__`, as tutorials of the predecessor do."""

    def __getitem__(self, at: Any) -> Any:
        return ("by item", super().__getitem__(at))


class ByGetItem(StreamingDataset):
    """Overrides `get_item`."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        return ("by get_item", super().get_item(sample_id, retry))


def _unwrapped(samples: list[Any]) -> list[tuple[str, int]]:
    return [(kind, checked_id(sample)) for kind, sample in samples]


@pytest.mark.parametrize("kind", [ByItem, ByGetItem])
@pytest.mark.parametrize(
    ("n_workers", "method"),
    [(0, None), (1, "fork"), (2, "fork"), (8, "fork"), (2, "forkserver"), (1, "spawn"), (2, "spawn")],
)
def test_a_local_subclass_works_with_any_number_of_workers(
    source: str, kind: type[StreamingDataset], n_workers: int, method: str | None
) -> None:
    """All worker counts and start methods give the same ids, and either override takes effect."""
    dataset = kind(local=source, shuffle=True, batch_size=4)
    loader = DataLoader(
        dataset, batch_size=4, num_workers=n_workers, multiprocessing_context=method, collate_fn=_unwrapped
    )
    found = [pair for batch in loader for pair in batch]
    label = "by item" if kind is ByItem else "by get_item"
    assert sorted(found) == [(label, number) for number in range(N)]
    plain = StreamingDataset(local=source, shuffle=True, batch_size=4)
    assert [sample for _, sample in found] == list(map(checked_id, plain))
    assert {kind for kind, _ in found} == {label}


def test_threads_read_one_dataset_at_once(source: str, tmp_path: Path) -> None:
    """Eight threads read random samples through a cold cache: all that a sample by number needs is thread-safe."""
    dataset = StreamingDataset(remote=source, local=str(tmp_path / "cache"))
    problems: list[BaseException] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(200):
                number = rng.randrange(N)
                assert checked_id(dataset[number]) == number
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems


def test_streams_with_one_cache_or_several_are_mixed_and_split_keeps_them_apart(tmp_path: Path) -> None:
    """Two remotes with equal file names, each with its cache; two splits of one root; streams used by two datasets."""
    write_numbered(str(tmp_path / "a"), 40)
    write_numbered(str(tmp_path / "b" / "train"), 60, first=1000)
    write_numbered(str(tmp_path / "b" / "val"), 5, first=5000)
    streams = [
        Stream(remote=str(tmp_path / "a"), local=str(tmp_path / "cache" / "a")),
        Stream(remote=str(tmp_path / "b"), local=str(tmp_path / "cache" / "b"), split="train"),
        Stream(remote=str(tmp_path / "b"), local=str(tmp_path / "cache" / "b"), split="val"),
    ]
    expected = [*range(40), *range(1000, 1060), *range(5000, 5005)]
    datasets = [StreamingDataset(streams=streams, shuffle=True) for _ in range(2)]
    for dataset in datasets:
        assert [checked_id(sample) for sample in dataset[:]] == expected
        assert sorted(map(checked_id, dataset)) == expected
        assert dataset.samples_per_stream.tolist() == [40, 60, 5]
        assert dataset.sample_offset_per_stream.tolist() == [0, 40, 100]
    assert {name for name in os.listdir(tmp_path / "cache" / "b" / "val") if name[0] != "."} == {
        "index.json",
        "shard.00000.mds",
    }


def test_unshuffled_streams_alternate_by_weight_when_stratified(tmp_path: Path) -> None:
    """The counts of two equal streams differ by at most one in every prefix."""
    write_numbered(str(tmp_path / "a"), 50)
    write_numbered(str(tmp_path / "b"), 50, first=1000)
    streams = [Stream(local=str(tmp_path / name)) for name in "ab"]
    dataset = StreamingDataset(streams=streams, batching_method="stratified")
    ids = list(map(checked_id, dataset))
    n_a = np.cumsum([number < 1000 for number in ids])
    assert np.abs(2 * n_a - np.arange(1, 101)).max() <= 1
    assert [number for number in ids if number < 1000] == list(range(50))


def test_a_local_dataset_reads_compressed_data_and_changes_nothing(tmp_path: Path) -> None:
    """The map-style dataset decompresses, reads any sample, and leaves the source as it was."""
    source = tmp_path / "source"
    write_numbered(str(source), 200, compression="br:3")
    before = {name: (source / name).read_bytes() for name in os.listdir(source)}
    dataset = LocalDataset(str(source))
    assert [checked_id(sample) for sample in dataset[::-1]] == list(range(200))[::-1]
    loader = DataLoader(dataset, batch_size=10, num_workers=2, collate_fn=checked_ids)
    assert [sample for batch in loader for sample in batch] == list(range(200))
    streamed = StreamingDataset(local=str(source), shuffle=True, keep_zip=True)
    assert sorted(map(checked_id, streamed)) == list(range(200))
    assert {name: (source / name).read_bytes() for name in os.listdir(source)} == before
