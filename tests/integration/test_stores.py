"""Write, stream and check every byte in each kind of store, through the fetcher, as users do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streaming import Stream, StreamingDataset
from streaming.errors import ObjectForbiddenError, StreamingError
from streaming.storage import register_store, registry
from streaming.testing import AzureServer, GcsServer, S3Server, WebServer
from streaming.testing.azure import account_key
from streaming.testing.s3 import ACCESS_KEY, SECRET_KEY
from support.numbered import checked_ids, write_numbered
from support.servers import started

N = 200


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    yield from started(AzureServer.started())


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    yield from started(GcsServer.started())


@pytest.fixture(scope="module")
def open_s3() -> Iterator[S3Server]:
    yield from started(S3Server.started(keys=None))


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    yield from started(WebServer.started())


def written_and_read(
    remote: str, cache: Path, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    """A data set written below `remote` and read back, in an environment with these variables."""
    for name, value in {"NO_PROXY": "127.0.0.1", "HOME": "/nowhere", **variables}.items():
        monkeypatch.setenv(name, value)
    write_numbered(f"{remote}/some set", N, compression="zstd", **options)
    read_and_checked(f"{remote}/some set", cache)


def read_and_checked(remote: str, cache: Path, **options: Any) -> None:
    dataset = StreamingDataset(remote=remote, local=str(cache), batch_size=4, shuffle=True, **options)
    assert sorted(checked_ids(list(dataset))) == list(range(N))
    assert checked_ids([dataset[N - 1]]) == [N - 1]


@pytest.mark.parametrize(
    "remote", ["azure://box", "azure://streaming.blob.core.windows.net/box", "abfs://box@streaming"]
)
def test_azure(azure: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: str) -> None:
    """By the predecessor's variables, in each form of a URL."""
    options = {"endpoint": azure.endpoint()}
    for name, value in {**azure.variables(), "HOME": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    place = f"azure://box/{tmp_path.name}"
    write_numbered(place, N)
    read_and_checked(place.replace("azure://box", remote), tmp_path / "cache", storage_options=options)


@pytest.mark.parametrize(
    "variables", [{"GCS_KEY": ACCESS_KEY, "GCS_SECRET": SECRET_KEY}, {"GOOGLE_BEARER_TOKEN": "anybody"}]
)
def test_google(
    s3_server: S3Server, open_s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """By the predecessor's HMAC keys, and by a token; SeaweedFS in Google's place, whose interface is the same."""
    server = s3_server if "GCS_KEY" in variables else open_s3
    variables = {**variables, "GOOGLE_BASE_URL": server.endpoint}
    written_and_read(f"gs://{server.bucket}/{tmp_path.name}", tmp_path / "cache", variables, monkeypatch)


def test_googles_emulator(gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads what others put there, with nothing set but the emulator's variable."""
    write_numbered(str(tmp_path / "source"), N)
    for path in (tmp_path / "source").iterdir():
        gcs.put(f"a set/{path.name}", path.read_bytes())
    for name, value in {**gcs.variables(), "HOME": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    read_and_checked(f"gs://{gcs.bucket}/a set", tmp_path / "cache")


@pytest.mark.parametrize("habit", ["plain", "ignores-ranges", "no-length", "moved"])
def test_a_web_server(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, habit: str) -> None:
    """Whatever its habits; one that takes uploads is written to."""
    place = tmp_path.name.replace("[", "").replace("]", "")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    write_numbered(web.url(place), N)
    read_and_checked(web.url(place, habit=habit), tmp_path / "cache")


def test_two_accounts_in_one_dataset(
    azure: AzureServer, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams of two clouds and two accounts, each with its own options and nothing in the environment."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HOME", "/nowhere")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "S3_ENDPOINT_URL", "AZURE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    places: list[tuple[str, dict[str, Any]]] = []
    for account in azure.accounts:
        options = {"endpoint": azure.endpoint(account), "account_name": account, "account_key": account_key(account)}
        places.append(("azure://box/two", options))
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "endpoint": s3_server.endpoint}
    places.append((f"s3://{s3_server.bucket}/two", keys))
    for i, account in enumerate(azure.accounts):
        write_numbered(str(tmp_path / f"source{i}"), N, first=i * N)
        for path in (tmp_path / f"source{i}").iterdir():
            azure.put(f"two/{path.name}", path.read_bytes(), account=account)
    write_numbered(str(tmp_path / "source2"), N, first=2 * N)
    for path in (tmp_path / "source2").iterdir():
        s3_server.put(f"two/{path.name}", path.read_bytes())
    streams = [
        Stream(remote=remote, local=str(tmp_path / f"cache{i}"), storage_options=options)
        for i, (remote, options) in enumerate(places)
    ]
    dataset = StreamingDataset(streams=streams, batch_size=4, shuffle=True)
    assert sorted(checked_ids(list(dataset))) == list(range(3 * N))


def test_a_store_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered by name, it is opened in the fetcher; what it raises comes back."""
    monkeypatch.setattr(registry, "_registered", {})
    register_store("shelf", "support.own_store:open_shelf")
    write_numbered(str(tmp_path / "source"), N)
    read_and_checked(f"shelf://anywhere{tmp_path}/source", tmp_path / "cache", storage_options={"key": "the right one"})
    with pytest.raises(ObjectForbiddenError, match="… does not fit"):  # an option may be a secret
        read_and_checked(
            f"shelf://anywhere{tmp_path}/source", tmp_path / "other", storage_options={"key": "the wrong one"}
        )


def test_a_wrong_option_is_told_at_construction(tmp_path: Path) -> None:
    """Before anything is asked."""
    with pytest.raises(StreamingError, match="s3:// takes no 'acount_name'"):
        Stream(remote="s3://bucket/x", local=str(tmp_path), storage_options={"acount_name": "x"})
