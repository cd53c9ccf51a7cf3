"""Merging in a real S3 server, and in a store that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streaming import StreamingDataset
from streaming.errors import (
    IndexMissingError,
    ObjectMissingError,
    OptionError,
    PartMissingError,
    StoreCannotError,
    WriteError,
)
from streaming.fetch.client import FetchClient
from streaming.storage.url import parse_remote
from streaming.testing import Fault, FaultProxy, FaultRule
from streaming.testing.s3 import S3Server
from streaming.write.merge import IndexFile, merge_index
from support.merging import INDEX, ids_in, names_of, write_parts
from support.numbered import checked_ids, write_numbered

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

SIZES = {"part2/train": 20, "part10/train": 15, "part10/val": 0, "part11": 5}


@pytest.fixture
def server(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, as the environment of this process says it is reached."""
    for name, value in s3_server.variables().items():
        monkeypatch.setenv(name, value)
    return s3_server


def uploaded(server: S3Server, name: str) -> str:
    """A root in the store with parts of `SIZES`."""
    root, first = server.url(name), 0
    for folder, n_samples in SIZES.items():
        write_numbered(f"{root}/{folder}", n_samples, first=first, size_limit=700, compression="zstd")
        first += n_samples
    return root


def ids_streamed(remote: str, cache: Path) -> list[int]:
    """The ids of all samples in stored order, every byte checked."""
    dataset = StreamingDataset(remote=remote, local=str(cache), batch_size=1)
    try:
        return checked_ids(list(dataset))
    finally:
        dataset.close()


def test_a_root_in_a_store_is_merged_again_and_again(server: S3Server, tmp_path: Path) -> None:
    """Parts at any depth, in natural order, all samples streamed; the same bytes the second time; shards untouched."""
    root = uploaded(server, "again")
    with FetchClient(None, []) as client:
        names = client.list_objects(parse_remote(root))
        merge_index(root, keep_local=False)
        merged = client.read_object(parse_remote(root), INDEX)
        merge_index(root + "/")
        assert client.read_object(parse_remote(root), INDEX) == merged
        assert client.list_objects(parse_remote(root)) == sorted([*names, INDEX])
    assert sorted(names_of(merged)) == sorted(name for name in names if not name.endswith(INDEX))
    assert ids_streamed(root, tmp_path) == list(range(40))


def test_a_pair_of_folder_and_store(server: S3Server, tmp_path: Path) -> None:
    """The folder gets a copy if it is to; a part that was not uploaded is an error, not left out."""
    root, local = uploaded(server, "pair"), tmp_path / "local"
    merge_index((str(local), root), False)
    assert not local.exists()
    merge_index((str(local), root))
    assert (local / INDEX).read_bytes() == server.get(f"pair/{INDEX}")
    write_parts(local, {"part12": 5})
    with pytest.raises(ObjectMissingError, match=f"part12/{INDEX} lies in the local folder, but not in {root}"):
        merge_index((str(local), root))
    assert ids_streamed(root, tmp_path / "cache") == list(range(40))


def test_a_list_of_urls_and_pairs(server: S3Server, tmp_path: Path) -> None:
    """In the order of the list; of a pair the file that is there."""
    root, local = uploaded(server, "list"), tmp_path / "local"
    (local / "part11").mkdir(parents=True)
    (local / "part11" / INDEX).write_bytes(server.get(f"list/part11/{INDEX}"))
    pairs = [(str(local / part / INDEX), f"{root}/{part}/{INDEX}") for part in ("part11", "part2/train")]
    files: list[IndexFile] = [*pairs, f"{root}/part10/train/{INDEX}"]
    merge_index(files, root)
    assert ids_streamed(root, tmp_path / "cache") == [*range(35, 40), *range(35)]
    with pytest.raises(OptionError, match=f"{root}/{INDEX} and {root}/part2/train/{INDEX} overlap"):
        merge_index([f"{root}/{INDEX}", f"{root}/part2/train/{INDEX}"], root)
    with pytest.raises(PartMissingError, match=r"(?s)Failed to download index.json.*part3.*Check data availability!"):
        merge_index([f"{root}/part3/{INDEX}"], root)
    with pytest.raises(IndexMissingError, match="nothing to merge"):
        merge_index(f"{root}/part2/train")


def test_shards_must_be_in_the_store(server: S3Server, tmp_path: Path) -> None:
    """An index without its shards is refused, by the list; what was merged before stays."""
    root = uploaded(server, "missing")
    merge_index(root)
    merged = server.get(f"missing/{INDEX}")
    index = json.loads(server.get(f"missing/part11/{INDEX}"))
    index["shards"][0]["zip_data"]["basename"] = "shard.00007.mds.zstd"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with FetchClient(None, []) as client:
        client.put(parse_remote(f"{root}/part11"), str(tmp_path / INDEX), INDEX)
    with pytest.raises(ObjectMissingError, match=f"part11/shard.00007.mds.zstd, which is not in {root}"):
        merge_index(root)
    assert server.get(f"missing/{INDEX}") == merged


def test_a_store_that_fails_once_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its list and for indexes; one that goes on failing is an error with the predecessor's words."""
    write_parts(tmp_path / "root", {"a": 15, "b": 10})
    files = [f"s3://bkt/root/{part}/{INDEX}" for part in ("b", "a")]
    with FaultProxy.started(buckets={"bkt": str(tmp_path)}) as proxy:
        for name, value in proxy.variables().items():
            monkeypatch.setenv(name, value)
        proxy.set_rules(FaultRule(Fault(status=500), once_per_path=True))
        merge_index(files, str(tmp_path / "root"))
        assert ids_in(tmp_path / "root") == [*range(15, 25), *range(15)]
        with FetchClient(None, []) as client:
            names = client.list_objects(parse_remote("s3://bkt/root/a"))
        assert names == sorted(path.name for path in (tmp_path / "root/a").iterdir())
        assert proxy.counts().fired == (3,)
        proxy.set_rules(FaultRule(Fault(status=500), path=f"b/{INDEX}"))
        with pytest.raises(WriteError, match=f"Failed to download index.json: {files[0]}"):
            merge_index(files, str(tmp_path / "root"))


def test_a_place_that_cannot_list_gets_no_index() -> None:
    """A web server is a source of indexes, not a place for one; NotImplementedError, as the predecessor raises."""
    with pytest.raises(StoreCannotError, match="does not list"):
        merge_index("http://127.0.0.1:9/root")
