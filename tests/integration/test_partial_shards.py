"""Samples of shards that are not on disk: they come by range, and are those of the shard whatever happens."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Subset

from streaming import LocalDataset, MDSWriter, Stream, StreamingDataset
from streaming.cache.files import table_name
from streaming.errors import OptionError, SampleIndexError, ShardDamagedError
from streaming.fetch.client import FetchClient
from streaming.fetch.decide.ranges import RangeRules
from streaming.fetch.wire import RangeAsk, Reason
from streaming.read.shards.sample_store import SampleStore
from streaming.stream import StreamDefaults, resolve
from streaming.testing import Fault, FaultProxy, FaultRule, ProxyLimits
from support import golden
from support.fetcher_world import wait_until
from support.numbered import numbered, write_numbered
from support.stores import gets, put, put_folder, ranges

N = 600


def store_of(remote: str, cache: Path, **options: object) -> SampleStore:
    """All samples of a remote."""
    stream = Stream(remote=remote, local=str(cache), **options)  # type: ignore[arg-type]
    return SampleStore([resolve(stream, 0, StreamDefaults())], allow_unsafe_types=True)


@pytest.fixture
def data(store: FaultProxy, tmp_path: Path) -> Path:
    """A data set in the misbehaving store, as `s3://bkt/d`; and the folder from which it was put there."""
    source = tmp_path / "source"
    write_numbered(str(source), N)
    put_folder(store, source, "d")
    return source


def _plain_mds() -> list[str]:
    """Golden data sets of uncompressed MDS shards in one folder."""
    found = []
    for name in golden.names():
        views = golden.expected(name)["views"]
        if name.startswith("mds-") and len(views) == 1 and views[0]["num_samples"]:
            index = golden.index_of(golden.view_folder(name, views[0]))
            if not index.is_compressed:
                found.append(name)
    return found


@pytest.mark.parametrize("rules", [RangeRules(), RangeRules(table_bytes=0)], ids=["whole table", "two offsets a row"])
def test_samples_by_range_are_those_of_the_shard_for_every_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: RangeRules
) -> None:
    """Every encoding, any rows in any order, by the offset table or by single offsets; no shard is cached."""
    monkeypatch.setattr(FetchClient, "rules", rules)
    names = _plain_mds()
    assert len(names) > 10
    locations = []
    for number, name in enumerate(names):
        view = golden.expected(name)["views"][0]
        folder = golden.view_folder(name, view)
        stream = Stream(remote=folder, local=str(tmp_path / "cache" / name))
        locations.append(resolve(stream, number, StreamDefaults()))
    reader = SampleStore(locations, allow_unsafe_types=True)
    rng = random.Random(0)
    for number, name in enumerate(names):
        view = golden.expected(name)["views"][0]
        mine = np.flatnonzero(reader.catalog.stream_of_shard == number)
        first = int(reader.catalog.first_sample[mine[0]])
        ids = rng.sample(range(view["num_samples"]), min(view["num_samples"], 20))
        shards, rows = reader.catalog.locate(np.array(ids) + first)
        wanted: dict[int, list[int]] = {}
        for shard, row in zip(shards.tolist(), rows.tolist()):
            wanted.setdefault(shard, []).append(row)
        partials = reader.ranges.read(wanted, RangeAsk(Reason.NO_ROOM))
        assert {shard: len(held) for shard, held in partials.items()} == {s: len(r) for s, r in wanted.items()}
        found = [partials[shard].sample(row) for shard, row in zip(shards.tolist(), rows.tolist())]
        golden.check_samples(found, [view["samples"][i] for i in ids])
    reader.close()
    assert not [path for path in (tmp_path / "cache").rglob("*.mds") if ".streaming" not in path.parts]


def test_a_sample_of_a_cold_shard_costs_two_requests_and_the_next_one(
    data: Path, store: FaultProxy, tmp_path: Path
) -> None:
    """Its offset table, which is kept in the cache for all later readers, and its record."""
    reader = store_of("s3://bkt/d", tmp_path / "cache")
    key = "d/shard.00003.mds"
    first = int(reader.catalog.first_sample[3])
    assert reader.sample(first + 1) == numbered(first + 1)
    assert gets(store)[key] == 2
    assert reader.sample(first + 2) == numbered(first + 2)
    assert gets(store)[key] == 3
    wait_until("the table is kept", (tmp_path / "cache" / table_name("shard.00003.mds")).exists)
    again = store_of("s3://bkt/d", tmp_path / "cache")
    assert again.sample(first + 3) == numbered(first + 3)
    assert gets(store)[key] == 4
    assert len([at for name, at in ranges(store) if name == key]) == 4


def test_who_reads_row_after_row_gets_the_shards(data: Path, store: FaultProxy, tmp_path: Path) -> None:
    """A few samples come alone, then each shard comes whole, once, and by no range."""
    reader = store_of("s3://bkt/d", tmp_path / "cache")
    first = int(reader.catalog.first_sample[3])
    assert [reader.sample(number) for number in range(first, N)] == [numbered(number) for number in range(first, N)]
    assert {name for name, _ in ranges(store)} == {"d/shard.00003.mds"}
    assert len(ranges(store)) <= 10
    for shard in range(4, reader.catalog.n_shards):
        assert gets(store)[f"d/shard.{shard:05}.mds"] == 1


def test_a_wrong_table_on_disk_is_fetched_again(data: Path, store: FaultProxy, tmp_path: Path) -> None:
    """Cut, or of other numbers: it is worth nothing, and the sample is right all the same."""
    cache = tmp_path / "cache"
    reader = store_of("s3://bkt/d", cache)
    tables = []
    for shard in (2, 3):
        first = int(reader.catalog.first_sample[shard])
        reader.sample(first)
        path = cache / table_name(f"shard.{shard:05}.mds")
        wait_until("the table is kept", path.exists)
        whole = path.read_bytes()
        tables.append((first, path, whole))
        path.write_bytes(whole[:-4] if shard == 2 else whole[:4] + whole[4:][::-1])
    again = store_of("s3://bkt/d", cache)
    for first, path, whole in tables:
        assert again.sample(first + 1) == numbered(first + 1)
        assert path.read_bytes() == whole


def test_offsets_that_the_store_gives_wrong_are_an_error_with_the_shard(
    data: Path, store: FaultProxy, tmp_path: Path
) -> None:
    """The shard itself is wrong: the error names it and its stream, and what was found; no sample is made up."""
    key = "d/shard.00001.mds"
    whole = bytearray((data / "shard.00001.mds").read_bytes())
    struct.pack_into("<I", whole, 8, 1 << 30)
    put(store, {key: bytes(whole)})
    reader = store_of("s3://bkt/d", tmp_path / "cache", validate_hash=False)
    with pytest.raises(ShardDamagedError, match=r"s3://bkt/d.*shard.00001.mds.*1073741824"):
        reader.sample(int(reader.catalog.first_sample[1]))


def test_a_record_that_does_not_decode_is_taken_from_the_whole_shard(
    data: Path, store: FaultProxy, tmp_path: Path
) -> None:
    """A range has no hash. A record that came wrong is replaced by that of the shard, which has one."""
    reader = store_of("s3://bkt/d", tmp_path / "cache")
    first = int(reader.catalog.first_sample[2])
    reader.sample(first)  # the table is known now, so the next request is a record
    store.set_rules(FaultRule(Fault(flip_at=0), path="d/shard.00002.mds", times=1))
    assert reader.sample(first + 5) == numbered(first + 5)
    assert (tmp_path / "cache" / "shard.00002.mds").read_bytes() == (data / "shard.00002.mds").read_bytes()


def test_many_samples_come_together_and_cost_little_more_than_themselves(store: FaultProxy, tmp_path: Path) -> None:
    """One sample of each of a thousand shards, in any order: two requests a shard, under three times their bytes."""
    n_shards, per_shard, n_bytes = 1000, 12, 1000
    with MDSWriter(out=str(tmp_path / "source"), columns={"id": "int", "blob": "bytes"}, size_limit=12_500) as writer:
        for number in range(n_shards * per_shard):
            writer.write({"id": number, "blob": random.Random(number).randbytes(n_bytes)})
    put_folder(store, tmp_path / "source", "d")
    store.set_limits(ProxyLimits(latency_s=0.02))
    with StreamingDataset(remote="s3://bkt/d", local=str(tmp_path / "cache"), batch_size=8) as dataset:
        n_shards = dataset.num_shards
        assert n_shards > 900
        rng = random.Random(1)
        first, sizes = dataset.sample_offset_per_shard.tolist(), dataset.samples_per_shard.tolist()
        wanted = [shard_first + rng.randrange(size) for shard_first, size in zip(first, sizes)]
        rng.shuffle(wanted)
        sent = dataset._streaming_internals.store.client.n_sent
        samples = dataset[wanted]
        assert [sample["id"] for sample in samples] == wanted
        assert all(sample["blob"] == random.Random(sample["id"]).randbytes(n_bytes) for sample in samples)
        assert gets(store).total() <= 1 + 16 + 2 * n_shards  # the index, the shards announced at the start
        assert dataset._streaming_internals.store.client.n_sent - sent < 50
        assert dataset._streaming_internals.store.client.status()["total"]["bytes"] < 3 * n_bytes * n_shards


def test_damaged_cache_files_heal_and_sources_stay(data: Path, store: FaultProxy, tmp_path: Path) -> None:
    """A cached file of the right size with a wrong table is fetched once more; of a source it is an error."""
    cache = tmp_path / "cache"
    reader = store_of("s3://bkt/d", cache)
    for shard in range(3):
        reader.pool.open(shard, keep=False)
    spoiled = bytearray((cache / "shard.00001.mds").read_bytes())
    struct.pack_into("<I", spoiled, 8, 1 << 30)
    (cache / "shard.00001.mds").write_bytes(spoiled)
    before = gets(store)["d/shard.00001.mds"]
    first = int(reader.catalog.first_sample[1])
    assert reader.sample(first) == numbered(first)
    assert gets(store)["d/shard.00001.mds"] == before + 1
    assert (cache / "shard.00001.mds").read_bytes() == (data / "shard.00001.mds").read_bytes()
    (data / "shard.00001.mds").write_bytes(spoiled)
    in_place = LocalDataset(str(data))
    with pytest.raises(ShardDamagedError, match=r"shard.00001.mds"):
        in_place[first]
    assert (data / "shard.00001.mds").read_bytes() == bytes(spoiled)


def test_who_names_a_hash_gets_no_byte_that_it_has_not_covered(data: Path, store: FaultProxy, tmp_path: Path) -> None:
    """Then shards come whole: nothing is read by range."""
    reader = store_of("s3://bkt/d", tmp_path / "cache", validate_hash="xxh64")
    first = int(reader.catalog.first_sample[4])
    assert reader.sample(first) == numbered(first)
    assert not ranges(store)
    assert os.path.exists(tmp_path / "cache" / "shard.00004.mds")


class Numbers(StreamingDataset):
    """A subclass with its own idea of a sample."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        return super().get_item(sample_id, retry)["id"]


def test_many_at_once_are_the_same_cold_and_warm_however_they_are_asked_for(
    data: Path, store: FaultProxy, tmp_path: Path
) -> None:
    """As slices, lists, nested lists, arrays and PyTorch's subsets, also through a subclass; with few messages."""
    asked: list[Any] = [
        slice(500, 100, -37),
        [3, 599, 3, -1],
        [[7, 400], [250, -600]],
        np.arange(0, 600, 41),
        np.array([[5, 300], [599, 0]]),
        (np.int32(17), 599),
    ]
    with StreamingDataset(local=str(data)) as warm:
        expected = [warm[at] for at in asked]
        numbers = list(range(600))
        for number, at in enumerate(asked):
            with StreamingDataset(remote="s3://bkt/d", local=str(tmp_path / f"cold{number}")) as cold:
                sent = cold._streaming_internals.store.client.n_sent
                assert cold[at] == expected[number]
                assert cold._streaming_internals.store.client.n_sent - sent < 25
            with Numbers(remote="s3://bkt/d", local=str(tmp_path / f"made{number}")) as made:
                sent = made._streaming_internals.store.client.n_sent
                assert made[at] == (np.array(numbers)[at].tolist() if not isinstance(at, tuple) else [17, 599])
                assert made._streaming_internals.store.client.n_sent - sent < 25
    with Numbers(remote="s3://bkt/d", local=str(tmp_path / "subset")) as made:
        part = Subset(made, list(range(599, 0, -13)))
        loader = DataLoader(part, batch_size=16, collate_fn=list)
        assert [number for batch in loader for number in batch] == list(range(599, 0, -13))


def test_what_is_outside_is_an_error_also_among_many(data: Path, store: FaultProxy, tmp_path: Path) -> None:
    """The same as of one number, and of anything that is no number."""
    with StreamingDataset(remote="s3://bkt/d", local=str(tmp_path / "cache")) as dataset:
        with pytest.raises(SampleIndexError, match="600 samples"):
            dataset[[1, 2, 600]]
        with pytest.raises(OptionError, match="indexed by"):
            dataset[[1, "2"]]


def test_a_record_that_no_answer_can_hold_comes_with_its_shard(
    data: Path, store: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not asked for by range, alone or among smaller ones; the sample is right all the same."""
    monkeypatch.setattr(FetchClient, "rules", RangeRules(record_bytes=1))
    reader = store_of("s3://bkt/d", tmp_path / "cache")
    first = int(reader.catalog.first_sample[3])
    assert reader.sample(first + 1) == numbered(first + 1)
    assert (tmp_path / "cache" / "shard.00003.mds").exists()
    reader.close()
    with StreamingDataset(remote="s3://bkt/d", local=str(tmp_path / "other")) as dataset:
        assert dataset[[5, first, 2]] == [numbered(5), numbered(first), numbered(2)]
