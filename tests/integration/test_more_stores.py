"""Write, stream and check every byte in the stores beside clouds and web servers, through the fetcher, as users do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streaming import StreamingDataset
from streaming.errors import ObjectForbiddenError
from streaming.testing import S3Server, SftpServer
from streaming.testing.s3 import ACCESS_KEY, SECRET_KEY
from support.databricks_double import DatabricksDouble
from support.ftp_server import PASSWORD, USER, FtpServer
from support.hadoop_double import HadoopDouble
from support.hub_double import ContentNetwork, HubDouble, Repo
from support.numbered import checked_ids, write_numbered
from support.oci_double import BUCKET, NAMESPACE, OciDouble
from support.servers import started

N = 200


@pytest.fixture(scope="module")
def sftp() -> Iterator[SftpServer]:
    yield from started(SftpServer.started())


def written_and_read(
    remote: str, folder: Path, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    """A data set written at `remote` and read back, in an environment with these variables."""
    for name, value in {"NO_PROXY": "127.0.0.1", "HOME": "/nowhere", **variables}.items():
        monkeypatch.setenv(name, value)
    write_numbered(remote, N, compression="zstd", storage_options=options)
    dataset = StreamingDataset(
        remote=remote, local=str(folder / "cache"), batch_size=4, shuffle=True, storage_options=options
    )
    assert sorted(checked_ids(list(dataset))) == list(range(N))
    assert checked_ids([dataset[N - 1]]) == [N - 1]


def test_sftp(sftp: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the predecessor's variables; it could read only."""
    written_and_read(sftp.url("some set"), tmp_path, sftp.variables(), monkeypatch)


def test_who_is_not_let_in_is_told_as_whom(sftp: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across processes; the password stays where it is."""
    for name, value in sftp.variables().items():
        monkeypatch.setenv(name, value)
    remote = f"sftp://nobody-here:pass-word@127.0.0.1:{sftp.port}/data"
    with pytest.raises(ObjectForbiddenError, match="'nobody-here'") as caught:
        StreamingDataset(remote=remote, local=str(tmp_path), batch_size=1)
    assert "pass-word" not in str(caught.value)


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of its own name in a folder of a repository: shards as large files, the index as a small one."""
    with HubDouble.started() as hub, ContentNetwork.started() as network:
        hub.network, network.hub = network, hub
        hub.repos["org/name"] = Repo()
        written_and_read("hf://datasets/org/name/some/set", tmp_path, hub.variables(), monkeypatch)
        names = set(hub.repos["org/name"].branches["main"])
        assert "some/set/index.json" in names
        assert all(name.startswith("some/set/") for name in names)
        assert network.asked("GET", "/objects/")


@pytest.mark.parametrize("remote", ["dbfs:/Volumes/c/s/v/some set", "dbfs:/some set"])
def test_databricks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: str) -> None:
    """A volume, and DBFS."""
    with DatabricksDouble.started() as workspace:
        written_and_read(remote, tmp_path, workspace.variables(), monkeypatch)


def test_oracle_by_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ~/.oci/config, as the predecessor."""
    with OciDouble.started() as oci:
        variables = oci.configure(tmp_path / "oci")
        written_and_read(f"oci://{BUCKET}@{NAMESPACE}/set", tmp_path, variables, monkeypatch, endpoint=oci.url)


@pytest.mark.parametrize("scheme", ["oci", "oss", "r2"])
def test_what_speaks_as_s3_does(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """By keys in the options."""
    options = {"endpoint": s3_server.endpoint, "virtual_hosted_style": False}
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    written_and_read(f"{scheme}://{s3_server.bucket}/{scheme} set", tmp_path, {}, monkeypatch, **options, **keys)


def test_hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its port in the URL."""
    with HadoopDouble.started() as hadoop:
        written_and_read(f"hdfs://{hadoop.authority}/some set", tmp_path, {}, monkeypatch)


def test_what_fsspec_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An FTP server, whose user is among the options of its file system."""
    with FtpServer.started() as ftp:
        options = {"username": USER, "password": PASSWORD}
        written_and_read(f"ftp://127.0.0.1:{ftp.port}/some set", tmp_path, {}, monkeypatch, **options)
