"""Folders, and the stores of the network against real servers, keep the contract."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from streaming.storage.local import FolderStore
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.storage.web.store import WebStore
from streaming.testing.azure import AzureServer
from streaming.testing.memory import MemoryStore
from streaming.testing.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from streaming.testing.store_contract import StoreContract
from streaming.testing.web import WebServer
from support.servers import started

_numbers = itertools.count()


def opened(remote: str, variables: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None) -> Store:
    """Open the store in a new folder below `remote`."""
    environment = {"HOME": "/nowhere", "NO_PROXY": "127.0.0.1", **(variables or {})}
    return Stores(environment).open(parse_remote(f"{remote}/contract {next(_numbers)}"), 20.0, options)


class TestFolderStore(StoreContract):
    """A folder."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FolderStore(str(tmp_path / "store"))

    def test_temporaries_are_not_objects(self, tmp_path: Path) -> None:
        """Unfinished uploads of another writer are not listed."""
        store = FolderStore(str(tmp_path))
        (tmp_path / ".a.0123456789abcdef.tmp").touch()
        assert list(store.list()) == []


class TestMemoryStore(StoreContract):
    """The fake for users' tests."""

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore("prefix")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    yield from started(S3Server.started())


class TestS3(StoreContract):
    """SeaweedFS, which checks signatures."""

    @pytest.fixture
    def store(self, s3: S3Server) -> Store:
        return opened(s3.url(), s3.variables())


class TestS3ByOptions(StoreContract):
    """The same, without any variables."""

    @pytest.fixture
    def store(self, s3: S3Server) -> Store:
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
        return opened(s3.url(), None, {"endpoint_url": s3.endpoint, **keys})


class TestGcsWithHmacKeys(StoreContract):
    """Google's HMAC keys are for S3's protocol; SeaweedFS takes Google's place."""

    @pytest.fixture
    def store(self, s3: S3Server) -> Store:
        variables = {"GCS_KEY": ACCESS_KEY, "GCS_SECRET": SECRET_KEY, "GOOGLE_BASE_URL": s3.endpoint}
        return opened(f"gs://{s3.bucket}", variables)


@pytest.fixture(scope="module")
def open_s3() -> Iterator[S3Server]:
    yield from started(S3Server.started(keys=None))


class TestGcs(StoreContract):
    """Google's XML interface is S3's, except for credentials; SeaweedFS without access control takes Google's place."""

    @pytest.fixture
    def store(self, open_s3: S3Server) -> Store:
        return opened(f"gs://{open_s3.bucket}", None, {"endpoint": open_s3.endpoint, "token": "any"})


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    yield from started(AzureServer.started())


class TestAzure(StoreContract):
    """Azurite, which checks signatures."""

    @pytest.fixture
    def store(self, azure: AzureServer) -> Store:
        return opened(f"azure://{azure.container}", azure.variables())


class TestAzureByAccountUrl(StoreContract):
    """The form of URL with the account's host; the options hold Azurite's endpoint and a signed query."""

    @pytest.fixture
    def store(self, azure: AzureServer) -> Store:
        account = azure.accounts[1]
        options = {"endpoint": azure.endpoint(account), "sas_token": azure.signed_query("racwdl", account=account)}
        return opened(f"azure://{account}.blob.core.windows.net/{azure.container}", None, options)


class TestAzureDataLake(StoreContract):
    """A file system of Data Lake is a container."""

    @pytest.fixture(params=["azure-dl://{container}", "abfss://{container}@{account}.dfs.core.windows.net"])
    def store(self, azure: AzureServer, request: pytest.FixtureRequest) -> Store:
        remote = request.param.format(container=azure.container, account=azure.accounts[0])
        return opened(remote, azure.variables(), {"endpoint": azure.endpoint()})


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    yield from started(WebServer.started())


class TestWeb(StoreContract):
    """nginx, with uploads."""

    can_list: ClassVar[bool] = False

    @pytest.fixture
    def store(self, web: WebServer) -> Store:
        web.clear()
        store = opened(web.url())
        assert isinstance(store, WebStore)
        self._web, self._folder = web, f"contract {next(_numbers) - 1}"
        return store

    def put(self, store: Store, name: str, content: bytes, folder: Path) -> None:
        """Put, and advance the file's time by a second: with nginx, versions are size and second."""
        super().put(store, name, content, folder)
        moment_s = 1_000_000_000 + next(_numbers)
        (path,) = Path(self._web.folder).glob(f"*/{name.replace('[', '[[]').replace('?', '[?]')}")
        os.utime(path, (moment_s, moment_s))
