"""A cache with a limit: what is refused, what is warned of, and that all samples come all the same."""

from __future__ import annotations

import logging
import re
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import OptionError
from streaming.testing import FaultProxy
from support import numbered
from support.disks import Watcher
from support.fetcher_world import content, wait_until
from support.numbered import write_numbered
from support.stores import put_folder, whole_gets

N = 800
BATCH = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty shards of 64 KiB, beside which the index is small."""
    folder = tmp_path_factory.mktemp("limit") / "source"
    with MDSWriter(out=str(folder), columns={"id": "int", "blob": "bytes"}, size_limit=1 << 16) as writer:
        for number in range(N):
            writer.write({"id": number, "blob": content(str(number), 1600)})
    return folder


def checked_id(sample: dict[str, Any]) -> int:
    """The sample's number; an error if any of its bytes is wrong."""
    assert sample["blob"] == content(str(sample["id"]), 1600)
    return int(sample["id"])


def checked_ids(samples: list[dict[str, Any]]) -> list[int]:
    return list(map(checked_id, samples))


@pytest.fixture
def remote(store: FaultProxy, data: Path) -> str:
    return put_folder(store, data, "d")


def largest(folder: Path) -> int:
    return max(path.stat().st_size for path in folder.glob("*.mds*"))


def the_order(data: Path, **options: Any) -> list[int]:
    with StreamingDataset(local=str(data), **{"shuffle": True, "batch_size": BATCH, **options}) as dataset:
        return list(map(checked_id, dataset))


# --- what is refused, and what is warned of


@pytest.mark.parametrize("shards", [0.5, 1, 1.5])
def test_a_limit_below_two_shards_is_refused_with_the_least_one(
    remote: str, data: Path, tmp_path: Path, shards: float
) -> None:
    """The error says the limit, the least workable value, and the shard that drives it; that value works."""
    limit = int(shards * largest(data))
    with pytest.raises(OptionError, match=rf"cache_limit={limit}.* at least ([\d,]+) bytes .*shard\.\d+\.mds") as found:
        StreamingDataset(remote=remote, local=str(tmp_path / "cache"), cache_limit=limit)
    stated = re.search(r"at least ([\d,]+) bytes", str(found.value))
    assert stated is not None
    least = int(stated[1].replace(",", ""))
    assert least == 2 * largest(data)
    StreamingDataset(remote=remote, local=str(tmp_path / "cache"), cache_limit=least).close()


def test_of_compressed_shards_both_forms_count(tmp_path: Path) -> None:
    """While one comes, both may lie there."""
    write_numbered(str(tmp_path / "source"), 200, compression="zstd")
    with pytest.raises(OptionError, match="compressed"):
        StreamingDataset(
            remote=str(tmp_path / "source"),
            local=str(tmp_path / "cache"),
            cache_limit=2 * largest(tmp_path / "source"),
        )


def test_a_limit_below_the_working_set_is_warned_of_once_with_both_values(
    remote: str, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Above it, and without a limit, nothing is said."""
    options: dict[str, Any] = {"remote": remote, "shuffle": True, "batch_size": BATCH, "num_canonical_nodes": 1}
    with caplog.at_level(logging.WARNING, logger="streaming"):
        with StreamingDataset(local=str(tmp_path / "a"), cache_limit="512kb", **options) as dataset:
            needed = dataset.explain().cache_bytes
            assert needed is not None
            assert needed > 1 << 19
            next(iter(dataset))
            next(iter(dataset))
        said = [record.getMessage() for record in caplog.records if "cache_limit" in record.getMessage()]
        assert len(said) == 1
        assert "512.0 KiB" in said[0]
        assert f"{needed / 2**20:.1f} MiB" in said[0]
        assert "fetches" in said[0]
        caplog.clear()
        for limit in (2 * needed, None):
            with StreamingDataset(local=str(tmp_path / "b"), cache_limit=limit, **options) as dataset:
                next(iter(dataset))
    assert not [record for record in caplog.records if "cache" in record.getMessage()]


def test_a_limit_for_what_is_read_in_place_has_nothing_to_limit(data: Path) -> None:
    """No fetcher, no warning, no refusal."""
    with StreamingDataset(local=str(data), cache_limit=1, shuffle=True, batch_size=BATCH) as dataset:
        assert len(list(dataset)) == N
        assert dataset._streaming_internals.store.client.n_sent == 0


# --- what is kept


@pytest.mark.parametrize("shards", [2, 3, 10])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_every_sample_comes_under_any_limit_that_is_accepted(
    remote: str, store: FaultProxy, data: Path, tmp_path: Path, shards: int, n_workers: int
) -> None:
    """Full coverage in the order of an unlimited cache, twice, with never more below the cache than the limit."""
    limit = shards * largest(data)
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), shuffle=True, cache_limit=limit)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=n_workers, collate_fn=checked_ids)
    with Watcher(tmp_path / "cache") as watcher:
        epochs = [[number for batch in loader for number in batch] for _ in range(2)]
    dataset.close()
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    if not n_workers:
        assert epochs[0] == the_order(data)
    assert watcher.most <= limit


def test_a_cache_of_the_working_set_fetches_each_shard_about_once(store: FaultProxy, tmp_path: Path) -> None:
    """A quarter more than what explain() says, and a consumer that takes a millisecond: 1.05 fetches of each shard."""
    data = tmp_path / "source"
    n = 4000
    with MDSWriter(out=str(data), columns={"id": "int", "blob": "bytes"}, size_limit=1 << 16) as writer:
        for number in range(n):
            writer.write({"id": number, "blob": content(str(number), 1600)})
    put_folder(store, data, "d")
    options: dict[str, Any] = {"batch_size": BATCH, "num_canonical_nodes": 2, "shuffle_block_size": 250}
    with StreamingDataset(local=str(data), shuffle=True, **options) as dataset:
        explained = dataset.explain()
    assert explained.cache_bytes is not None
    assert explained.cache_shards < 0.5 * dataset.num_shards
    limit = int(1.25 * explained.cache_bytes) + (data / "index.json").stat().st_size
    dataset = StreamingDataset(
        remote="s3://bkt/d", local=str(tmp_path / "cache"), shuffle=True, cache_limit=limit, **options
    )
    found = []
    for sample in dataset:
        found.append(checked_id(sample))
        time.sleep(0.001)
    assert found == the_order(data, **options)
    assert whole_gets(store).total() <= 1.05 * dataset.num_shards
    assert dataset._streaming_internals.store.client.status()["evicted"] >= 0.5 * dataset.num_shards
    dataset.close()


def test_sequential_reading_needs_two_shards(remote: str, store: FaultProxy, data: Path, tmp_path: Path) -> None:
    """Without shuffle nothing is fetched twice under the least limit; deletion makes room, not the dataset."""
    dataset = StreamingDataset(
        remote=remote, local=str(tmp_path / "cache"), batch_size=BATCH, cache_limit=3 * largest(data)
    )
    assert list(map(checked_id, dataset)) == list(range(N))
    assert whole_gets(store).total() <= 1.05 * dataset.num_shards
    dataset.close()


def test_one_shard_over_four_workers_one_of_which_is_fast(store: FaultProxy, tmp_path: Path) -> None:
    """A limit of two shards, and the cached shard deleted by hand in the middle: at most one more fetch for that."""
    write_numbered(str(tmp_path / "source"), 400, size_limit=1 << 20)
    put_folder(store, tmp_path / "source", "d")
    cache = tmp_path / "cache"
    limit = 2 * largest(tmp_path / "source") + (1 << 16)
    dataset = StreamingDataset(
        remote="s3://bkt/d", local=str(cache), shuffle=True, batch_size=2, cache_limit=limit, download_retry=2
    )
    wait_until("the shard has come", lambda: (cache / "shard.00000.mds").exists())
    loader = StreamingDataLoader(dataset, batch_size=2, num_workers=4, collate_fn=_slow_but_for_worker_0)
    batches = iter(loader)
    found = [number for batch in islice(batches, 40) for number in batch]
    (cache / "shard.00000.mds").unlink()
    found += [number for batch in batches for number in batch]
    assert sorted(found) == list(range(400))
    assert whole_gets(store).total() <= 2
    dataset.close()


def _slow_but_for_worker_0(samples: list[Any]) -> list[int]:
    info = get_worker_info()
    if info is not None and info.id:
        time.sleep(0.01)
    return numbered.checked_ids(samples)


def test_a_source_is_never_deleted_from(remote: str, data: Path, tmp_path: Path) -> None:
    """One stream in place, one cached under a limit of five shards, three epochs: the source stays as it is."""
    write_numbered(str(tmp_path / "own"), 300, first=10_000)
    before = {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()}
    limit = 5 * largest(data)
    streams = [Stream(local=str(tmp_path / "own")), Stream(remote=remote, local=str(tmp_path / "cache"))]
    with (
        Watcher(tmp_path / "cache") as watcher,
        StreamingDataset(streams=streams, shuffle=True, batch_size=BATCH, cache_limit=limit) as dataset,
    ):
        for _ in range(3):
            assert sorted(sample["id"] for sample in dataset) == [*range(N), *range(10_000, 10_300)]
    assert watcher.most <= limit
    assert {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir() if path.is_file()} == before


def test_random_access_keeps_to_the_limit(remote: str, data: Path, tmp_path: Path) -> None:
    """Any samples in any order; no shard stays mapped, so what is deleted is really gone."""
    limit = 3 * largest(data)
    with (
        Watcher(tmp_path / "cache") as watcher,
        StreamingDataset(remote=remote, local=str(tmp_path / "cache"), cache_limit=limit) as dataset,
    ):
        numbers = [number * 7919 % N for number in range(N)]
        assert [checked_id(dataset[number]) for number in numbers[:200]] == numbers[:200]
        assert list(map(checked_id, dataset[numbers])) == numbers
        assert not dataset._streaming_internals.store.pool.open_shards
    assert watcher.most <= limit


def test_compressed_data_under_the_least_limit(tmp_path: Path, store: FaultProxy) -> None:
    """Shards that cannot be read by parts come one after the other."""
    write_numbered(str(tmp_path / "source"), 400, compression="zstd")
    put_folder(store, tmp_path / "source", "d")
    with pytest.raises(OptionError) as found:
        StreamingDataset(remote="s3://bkt/d", local=str(tmp_path / "cache"), cache_limit=1)
    stated = re.search(r"at least ([\d,]+) bytes", str(found.value))
    assert stated is not None
    least = int(stated[1].replace(",", ""))
    with StreamingDataset(
        remote="s3://bkt/d", local=str(tmp_path / "cache"), cache_limit=least, batch_size=BATCH
    ) as dataset:
        assert list(map(numbered.checked_id, dataset)) == list(range(400))
