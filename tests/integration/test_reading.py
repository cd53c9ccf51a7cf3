"""Epochs over a slow store and a cache that is cold, small, full or read-only: the same samples in the same order."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import CacheWriteError, ClosedError, NoRoomError, ObjectMissingError, OptionError
from streaming.testing import Fault, FaultProxy, FaultRule, ProxyLimits
from support.fetcher_world import client_of, content, wait_until
from support.fetching import fetch_all
from support.numbered import checked_id, checked_ids, write_numbered
from support.stores import SILENT, gets, put_folder, ranges, whole_gets

N = 1200
BATCH = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of some thirty shards."""
    folder = tmp_path_factory.mktemp("reading") / "source"
    write_numbered(str(folder), N)
    return folder


@pytest.fixture
def remote(store: FaultProxy, data: Path) -> str:
    """The same in the misbehaving store."""
    return put_folder(store, data, "d")


def the_order(data: Path, **options: Any) -> list[int]:
    """The numbers of an epoch that is read in place."""
    with StreamingDataset(local=str(data), shuffle=True, batch_size=BATCH, **options) as dataset:
        return list(map(checked_id, dataset))


class Doubled(StreamingDataset):
    """A subclass with its own idea of a sample."""

    def __getitem__(self, at: Any) -> Any:
        return {"id": super().__getitem__(at)["id"], "sample": super().__getitem__(at)}


# --- cold


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_cold_epoch_is_the_warm_one_and_each_shard_comes_once(
    remote: str, store: FaultProxy, data: Path, tmp_path: Path, n_workers: int
) -> None:
    """The first batches come by range, at most four global batches and a hundredth; shards come whole, once."""
    store.set_limits(ProxyLimits(latency_s=0.02))
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=n_workers, collate_fn=checked_ids)
    cold = [number for batch in loader for number in batch]
    assert ranges(store)
    assert len(ranges(store)) <= 2 * (4 * BATCH + N // 100 + 1)
    wait_until("every shard has come", dataset._streaming_internals.store.is_complete)
    assert set(whole_gets(store).values()) == {1}
    n_gets = gets(store).total()
    dataset.set_epoch(0)
    assert [number for batch in loader for number in batch] == cold
    assert gets(store).total() == n_gets
    if not n_workers:
        assert cold == the_order(data)
    dataset.close()


def test_the_first_batches_do_not_wait_for_shards(store: FaultProxy, tmp_path: Path) -> None:
    """Shards take for ever here, records do not: four batches arrive before any shard has."""
    write_numbered(str(tmp_path / "source"), 3000, size_limit=1 << 17)
    remote = put_folder(store, tmp_path / "source", "d")
    store.set_rules(FaultRule(SILENT, path="mds$", ranged=False))
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), shuffle=True, batch_size=BATCH)
    first = list(map(checked_id, islice(dataset, 4 * BATCH)))
    assert len(set(first)) == 4 * BATCH
    assert not list((tmp_path / "cache").glob("*.mds"))
    dataset.close()


def test_a_subclass_that_makes_its_samples_reads_the_same_way(
    remote: str, store: FaultProxy, data: Path, tmp_path: Path
) -> None:
    """What its code will ask for is at hand before it is called, so it costs no requests of its own."""
    store.set_limits(ProxyLimits(latency_s=0.02))
    dataset = Doubled(remote=remote, local=str(tmp_path / "cache"), shuffle=True, batch_size=BATCH)
    made = list(dataset)
    assert [checked_id(sample["sample"]) for sample in made] == the_order(data)
    assert len(ranges(store)) <= 2 * (4 * BATCH + N // 100 + 1)
    total = dataset._streaming_internals.store.client.status()["total"]
    assert not total.get("ranges_random")
    dataset.close()


def test_ranges_that_fail_are_no_errors_while_the_shard_can_come(
    remote: str, store: FaultProxy, data: Path, tmp_path: Path
) -> None:
    """What would only have come earlier comes later."""
    store.set_rules(FaultRule(Fault(status=503), ranged=True, once_per_path=True))
    dataset = StreamingDataset(
        remote=remote, local=str(tmp_path / "cache"), shuffle=True, batch_size=BATCH, download_retry=2
    )
    assert list(map(checked_id, dataset)) == the_order(data)
    dataset.close()


def test_a_resumed_epoch_begins_by_range_and_goes_on_exactly(
    remote: str, store: FaultProxy, data: Path, tmp_path: Path
) -> None:
    """From the middle of an epoch, over a cold cache."""
    whole = the_order(data)
    with StreamingDataset(remote=remote, local=str(tmp_path / "a"), shuffle=True, batch_size=BATCH) as dataset:
        assert len(list(islice(dataset, 600))) == 600
        state = dataset.state_dict(600, from_beginning=True)
    store.reset_counts()
    with StreamingDataset(remote=remote, local=str(tmp_path / "b"), shuffle=True, batch_size=BATCH) as dataset:
        dataset.load_state_dict(state)
        assert list(map(checked_id, dataset)) == whole[600:]
        assert ranges(store)


# --- before anybody reads


def test_the_first_shards_come_while_the_program_gets_ready(
    store: FaultProxy, tmp_path: Path, data: Path, remote: str
) -> None:
    """At most 16, those needed first; once a state is loaded, those needed first from there on."""
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), batch_size=BATCH)
    wait_until("sixteen shards have come", lambda: len(list((tmp_path / "cache").glob("*.mds"))) == 16)
    assert set(whole_gets(store)) == {f"d/shard.{number:05}.mds" for number in range(16)}
    dataset.load_state_dict({**dataset.state_dict(0, from_beginning=True), "epoch": 0, "sample_in_epoch": N - 50})
    last = dataset.num_shards - 1
    wait_until("the last shard has come", lambda: (tmp_path / "cache" / f"shard.{last:05}.mds").exists())
    assert len(whole_gets(store)) <= 16 + 3
    dataset.close()


def test_nothing_is_sent_before_reading_when_the_first_shards_are_on_disk(remote: str, tmp_path: Path) -> None:
    """A second dataset over a warm cache looks once whether the index is the store's, and reads."""
    cache = str(tmp_path / "cache")
    with StreamingDataset(remote=remote, local=cache) as dataset:
        fetch_all(
            dataset._streaming_internals.store.client,
            [dataset._streaming_internals.store.files.request(shard) for shard in range(dataset.num_shards)],
        )
    with StreamingDataset(remote=remote, local=cache, shuffle=True, batch_size=BATCH) as dataset:
        assert len(list(dataset)) == N
        assert dataset._streaming_internals.store.client.n_sent == 1


# --- parts of passes


def test_shards_of_which_little_is_needed_are_not_fetched(store: FaultProxy, tmp_path: Path) -> None:
    """A fiftieth of a stream is drawn: its samples come by range, in the order of a warm cache; its shards do not."""
    with MDSWriter(out=str(tmp_path / "source"), columns={"id": "int", "blob": "bytes"}, size_limit=1 << 22) as writer:
        for number in range(1000):
            writer.write({"id": number, "blob": content(str(number), 20_000)})
    remote = put_folder(store, tmp_path / "source", "d")
    options: dict[str, Any] = {"shuffle": True, "batch_size": BATCH, "epoch_size": 20}
    with StreamingDataset(remote=remote, local=str(tmp_path / "cache"), **options) as dataset:
        cold = list(dataset)
        total = dataset._streaming_internals.store.client.status()["total"]
    assert all(sample["blob"] == content(str(sample["id"]), 20_000) for sample in cold)
    assert not list((tmp_path / "cache").glob("*.mds"))
    assert total["ranges_few"] <= 20 + dataset.num_shards
    assert total["files"] == 1  # the index
    with StreamingDataset(local=str(tmp_path / "source"), **options) as dataset:
        assert [sample["id"] for sample in cold] == [sample["id"] for sample in dataset]


# --- files that vanish, folders that are full or read-only


def test_a_shard_deleted_by_hand_in_mid_epoch_is_fetched_again(
    remote: str, store: FaultProxy, data: Path, tmp_path: Path
) -> None:
    """No error, full coverage, at most one more fetch for each deletion."""
    cache = tmp_path / "cache"
    dataset = StreamingDataset(remote=remote, local=str(cache), shuffle=True, batch_size=BATCH)
    found: list[int] = []
    samples = iter(dataset)
    n_deleted: Counter[str] = Counter()
    while len(found) < N:
        found += map(checked_id, islice(samples, 100))
        for path in sorted(cache.glob("*.mds"))[:3]:
            path.unlink()
            n_deleted[f"d/{path.name}"] += 1
    assert found == the_order(data)
    assert n_deleted.total() > 10
    for name, n in whole_gets(store).items():
        assert n <= 1 + n_deleted[name]
    dataset.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 64 KiB; skipped where none can be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_reads_on_by_range_with_one_warning(
    remote: str, data: Path, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole epoch, in order, although hardly any shard has room; the warning names the folder."""
    dataset = StreamingDataset(remote=remote, local=str(small_disk), shuffle=True, batch_size=BATCH)
    with caplog.at_level(logging.WARNING, logger="streaming"):
        assert list(map(checked_id, dataset)) == the_order(data)
    warnings = [record.getMessage() for record in caplog.records if "no room" in record.getMessage()]
    assert len(warnings) == 1
    assert str(small_disk) in warnings[0]
    dataset.close()


def test_a_read_only_cache_is_bypassed_with_one_warning(
    remote: str, data: Path, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples come by range, and the index without the cache; nothing is written."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    dataset = StreamingDataset(remote=remote, local=str(small_disk), shuffle=True, batch_size=BATCH)
    with caplog.at_level(logging.WARNING, logger="streaming"):
        assert list(map(checked_id, dataset)) == the_order(data)
    warnings = [record.getMessage() for record in caplog.records if str(small_disk) in record.getMessage()]
    assert len(warnings) == 1
    assert checked_id(dataset[N - 1]) == N - 1
    assert os.listdir(small_disk) == []
    dataset.close()


@pytest.mark.parametrize(("state", "error"), [("full", NoRoomError), ("read-only", CacheWriteError)])
def test_compressed_shards_that_cannot_be_placed_are_an_error(
    store: FaultProxy,
    tmp_path: Path,
    small_disk: Path,
    state: str,
    error: type[Exception],
) -> None:
    """They cannot be read by parts: the error says what is wrong with the folder."""
    write_numbered(str(tmp_path / "source"), 1000, size_limit=1 << 17, compression="zstd")
    remote = put_folder(store, tmp_path / "source", "d")
    if state == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with StreamingDataset(remote=remote, local=str(small_disk)) as dataset:
        dataset._streaming_internals.store.files.patience_s = 0.5
        with pytest.raises(error, match=str(small_disk)):
            list(dataset)


def test_a_shard_that_is_not_in_the_store_is_named(remote: str, store: FaultProxy, tmp_path: Path) -> None:
    """In an epoch, and by number."""
    store.remove("bkt", "d/shard.00007.mds")
    with StreamingDataset(remote=remote, local=str(tmp_path / "cache"), download_retry=1) as dataset:
        first = int(dataset.sample_offset_per_shard[7])
        with pytest.raises(ObjectMissingError, match=r"shard\.00007\.mds"):
            dataset[first]
        with pytest.raises(ObjectMissingError, match=r"shard\.00007\.mds"):
            list(dataset)


# --- closed


def test_a_closed_dataset_asks_the_fetcher_for_nothing(remote: str, store: FaultProxy, tmp_path: Path) -> None:
    """By number, in an epoch under way, in a new one: an error, and no message that would keep a fetcher alive."""
    store.set_rules(FaultRule(SILENT, path=r"\.mds", ranged=False))
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), shuffle=True, batch_size=BATCH)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=checked_ids)
    by_number_only = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), batch_size=BATCH)
    samples = iter(dataset)
    checked_id(next(samples))
    dataset.close()
    by_number_only.close()
    n_sent = dataset._streaming_internals.store.client.n_sent, by_number_only._streaming_internals.store.client.n_sent
    for use in (
        lambda: list(samples),
        lambda: list(loader),
        lambda: dataset[N - 1],
        lambda: by_number_only[[1, 600]],
        lambda: by_number_only[N - 1],
    ):
        with pytest.raises(ClosedError):
            use()
    assert (
        dataset._streaming_internals.store.client.n_sent,
        by_number_only._streaming_internals.store.client.n_sent,
    ) == n_sent


def test_an_epoch_that_was_read_ends_also_after_close(data: Path) -> None:
    """A training loop that closes its dataset after the last sample ends as any other."""
    dataset = StreamingDataset(local=str(data), batch_size=BATCH)
    found = []
    for sample in dataset:
        found.append(checked_id(sample))
        if len(found) == N:
            dataset.close()
    assert found == list(range(N))


# --- what explain() predicts


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_wait_for_the_first_batch_is_foretold(store: FaultProxy, tmp_path: Path, compression: str | None) -> None:
    """Within a quarter, over a store that takes seconds to answer, with nothing cached but the index.

    Compressed shards come in one round of requests. Others take longer here than samples alone, which come in two
    rounds: offsets, and records.
    """
    write_numbered(str(tmp_path / "source"), 3000, size_limit=1 << 16, compression=compression)
    remote = put_folder(store, tmp_path / "source", "d")
    with StreamingDataset(remote=remote, local=str(tmp_path / "cache")):
        pass  # the index has come
    latency_s = 3.0  # beside which what else is done is little
    store.set_limits(ProxyLimits(latency_s=latency_s))
    if compression is None:
        store.set_rules(FaultRule(SILENT, path="shard", ranged=False))
    bytes_per_s = 5e4 if compression is None else 1e9
    with client_of(remote, tmp_path / "cache") as client:
        client.status()  # the fetcher has started
        begun_s = time.monotonic()
        with StreamingDataset(remote=remote, local=str(tmp_path / "cache"), shuffle=True, batch_size=BATCH) as dataset:
            said = dataset.explain(latency_s=latency_s, bytes_per_s=bytes_per_s).first_batch_s
            assert len(list(islice(dataset, BATCH))) == BATCH
            taken_s = time.monotonic() - begun_s - latency_s  # without the look at the index
        assert said is not None
        assert 0.75 * taken_s <= said <= 1.25 * taken_s


def test_the_first_batch_of_data_on_disk_comes_at_once(data: Path) -> None:
    """Nothing is waited for, and explain() says so."""
    with StreamingDataset(local=str(data), shuffle=True, batch_size=BATCH) as dataset:
        explained = dataset.explain()
        assert (explained.first_batch_bytes, explained.first_batch_s) == (0, 0)
        assert "first batch: at once" in str(explained)
        with pytest.raises(OptionError, match="bytes_per_s"):
            dataset.explain(bytes_per_s=0)


def test_bytes_of_an_epoch_are_foretold_exactly(store: FaultProxy, tmp_path: Path) -> None:
    """On one node, of compressed shards: what explain() says is what comes."""
    write_numbered(str(tmp_path / "source"), 400, compression="zstd")
    remote = put_folder(store, tmp_path / "source", "d")
    with StreamingDataset(remote=remote, local=str(tmp_path / "cache"), shuffle=True, batch_size=BATCH) as dataset:
        said = dataset.explain().node_download_bytes
        assert sorted(map(checked_id, dataset)) == list(range(400))
        total = dataset._streaming_internals.store.client.status()["total"]
    assert said == (total["bytes"] - (tmp_path / "source" / "index.json").stat().st_size,)


# --- several streams


def test_streams_in_parts_and_whole_mix(store: FaultProxy, tmp_path: Path) -> None:
    """One compressed, one not, one in place: cold and warm the same."""
    streams = []
    for number, name in enumerate("abc"):
        options = {"compression": "zstd"} if name == "b" else {}
        write_numbered(str(tmp_path / name), 300, first=1000 * number, **options)
        remote = put_folder(store, tmp_path / name, name)
        streams.append(Stream(local=str(tmp_path / name)) if name == "c" else Stream(remote=remote))
    for stream in streams[:2]:
        stream.local = str(tmp_path / "cache" / str(stream.remote)[-1])
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=BATCH, batching_method="stratified")
    cold = list(map(checked_id, dataset))
    assert sorted(cold)[: len(cold)] == sorted([*range(300), *range(1000, 1300), *range(2000, 2300)])
    dataset.set_epoch(0)
    assert list(map(checked_id, dataset)) == cold
    dataset.close()
