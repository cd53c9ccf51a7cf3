"""HDFS through hdfs-native, against a double of Hadoop's protocol."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.store_contract import StoreContract
from support.hadoop_double import HadoopDouble, HadoopError


@pytest.fixture
def hadoop() -> Iterator[HadoopDouble]:
    with HadoopDouble.started() as hadoop:
        yield hadoop


def opened(hadoop: HadoopDouble, **options: Any) -> Store:
    return Stores({}).open(parse_remote(f"hdfs://{hadoop.authority}/data/sets"), 20.0, options)


class TestHdfs(StoreContract):
    """hdfs://"""

    @pytest.fixture
    def store(self, hadoop: HadoopDouble) -> Store:
        return opened(hadoop)

    def test_temporaries_are_not_objects(self, store: Store, hadoop: HadoopDouble, tmp_path: Path) -> None:
        """Unfinished uploads of another writer are not listed."""
        self.put(store, ".a.0123456789abcdef.tmp", b"half", tmp_path)
        assert list(store.list()) == []

    def test_a_put_that_fails_leaves_nothing(self, store: Store, hadoop: HadoopDouble, tmp_path: Path) -> None:
        """Neither object nor temporary remains; an old object stays."""
        self.put(store, "a", b"old", tmp_path)
        hadoop.failures.append(("rename2", HadoopError("java.io.IOException", "no")))
        with pytest.raises(StoreUnreachableError, match="no"):
            self.put(store, "a", b"new", tmp_path)
        assert list(hadoop.files) == ["/data/sets/a"]
        assert hadoop.content("/data/sets/a") == b"old"

    def test_a_folder_is_not_an_object(self, store: Store, tmp_path: Path) -> None:
        """It can be neither read nor replaced."""
        self.put(store, "sub/a", b"abc", tmp_path)
        for ask in (store.get, store.head):
            with pytest.raises(ObjectMissingError, match="folder"):
                ask("sub")
        with pytest.raises(StorageError, match="in the way"):
            self.put(store, "sub", b"abc", tmp_path)


def test_a_data_node_that_dies_is_an_error(hadoop: HadoopDouble, tmp_path: Path) -> None:
    """The bytes so far are good; the rest can be read when the node is back."""
    content = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(content)
    store = opened(hadoop)
    store.put("a", str(tmp_path / "file"))
    hadoop.cut_blocks_after = 2 << 20
    whole = store.get("a")
    got = bytearray(next(whole.chunks))
    with pytest.raises(StorageError):
        list(whole.chunks)
    hadoop.cut_blocks_after = -1
    got += b"".join(bytes(chunk) for chunk in store.get("a", offset=len(got), version=whole.facts.version).chunks)
    assert got == content


def test_refusals_and_faults_of_the_name_node_differ(hadoop: HadoopDouble) -> None:
    """A refusal to this user differs from a fault of the name node, which is worth another attempt."""
    store = opened(hadoop)
    denied = HadoopError("org.apache.hadoop.security.AccessControlException", "Permission denied: user=me")
    hadoop.failures.append(("getFileInfo", denied))
    with pytest.raises(ObjectForbiddenError, match="user=me"):
        store.head("a")
    hadoop.failures.append(("getFileInfo", HadoopError("org.apache.hadoop.ipc.RetriableException", "starting")))
    with pytest.raises(StoreUnreachableError, match="starting"):
        store.head("a")


def test_an_absent_server_is_unreachable_soon() -> None:
    """hdfs-native alone would try for three minutes."""
    with pytest.raises(StoreUnreachableError, match="refused"):
        Stores({}).open(parse_remote("hdfs://127.0.0.1:9/data"), 20.0).head("a")


def test_a_silent_name_node_is_abandoned() -> None:
    """hdfs-native alone would wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        store = Stores({}).open(parse_remote(f"hdfs://127.0.0.1:{server.getsockname()[1]}/data"), 1.0)
        with pytest.raises(StoreUnreachableError, match="said nothing for 1 s"):
            store.head("a")


def test_settings_are_hadoops(hadoop: HadoopDouble, tmp_path: Path) -> None:
    """They come from its configuration folder, which may name the cluster, and from storage_options."""
    value = f"<property><name>fs.defaultFS</name><value>hdfs://{hadoop.authority}</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{value}</configuration>")
    for store in (
        Stores({"HADOOP_CONF_DIR": str(tmp_path)}).open(parse_remote("hdfs:///data"), 20.0),
        Stores({}).open(parse_remote("hdfs:///data"), 20.0, {"config_dir": str(tmp_path)}),
        Stores({}).open(parse_remote("hdfs:///data"), 20.0, {"fs.defaultFS": f"hdfs://{hadoop.authority}"}),
    ):
        assert list(store.list()) == []
    with pytest.raises(OptionError, match="takes no 'region'"):
        opened(hadoop, region="x")
    with pytest.raises(OptionError, match="must be a text"):
        opened(hadoop, **{"dfs.client.failover.max.attempts": 3})


def test_a_file_that_is_being_written_is_not_read(hadoop: HadoopDouble, tmp_path: Path) -> None:
    """Nor is one that was replaced since."""
    (tmp_path / "file").write_bytes(b"abc")
    store = opened(hadoop)
    store.put("a", str(tmp_path / "file"))
    hadoop.blocks[hadoop.files["/data/sets/a"].blocks[0]] += b"more"
    with pytest.raises(TransferDamagedError, match="changed"):
        store.get("a", version=f"{hadoop.files['/data/sets/a'].moment_ms}-3")
