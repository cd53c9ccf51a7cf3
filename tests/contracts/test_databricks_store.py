"""Volumes of Databricks, and DBFS, against a double of their HTTP interfaces."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import databricks.sdk
import pytest

from streaming.errors import (
    ObjectForbiddenError,
    OptionError,
    StoreBusyError,
    TransferDamagedError,
)
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.store_contract import StoreContract
from support.databricks_double import CLIENT_ID, CLIENT_SECRET, DatabricksDouble
from support.http_double import Reply

VOLUME = "dbfs:/Volumes/c/s/v"


@pytest.fixture
def workspace() -> Iterator[DatabricksDouble]:
    with DatabricksDouble.started() as workspace:
        yield workspace


def opened(workspace: DatabricksDouble, remote: str = f"{VOLUME}/data", **options: Any) -> Store:
    return Stores(workspace.variables()).open(parse_remote(remote), 20.0, options)


class TestVolume(StoreContract):
    """dbfs:/Volumes/…"""

    @pytest.fixture
    def store(self, workspace: DatabricksDouble) -> Store:
        return opened(workspace)

    def test_the_sdk_reads_and_writes_the_same(self, store: Store, workspace: DatabricksDouble, tmp_path: Path) -> None:
        """So the double has the interface that Databricks' own library uses."""
        self.put(store, "sub/a b", b"ours", tmp_path)
        client = databricks.sdk.WorkspaceClient(host=workspace.url, token="dapi-secret")
        answer = client.files.download("/Volumes/c/s/v/data/sub/a b").contents
        assert answer is not None
        assert answer.read() == b"ours"
        client.files.upload("/Volumes/c/s/v/data/b", io.BytesIO(b"theirs"))
        assert store.get_range("b", 0, 6).data == b"theirs"
        assert {entry.path for entry in client.files.list_directory_contents("/Volumes/c/s/v/data")} == {
            "/Volumes/c/s/v/data/sub",
            "/Volumes/c/s/v/data/b",
        }


class TestDbfs(StoreContract):
    """dbfs:/…"""

    @pytest.fixture
    def store(self, workspace: DatabricksDouble) -> Store:
        return opened(workspace, "dbfs:/data/sets")

    def test_temporaries_are_not_objects(self, store: Store, workspace: DatabricksDouble) -> None:
        """Unfinished uploads of another writer are not listed."""
        workspace.write("/data/sets/.a.0123456789abcdef.tmp", b"")
        assert list(store.list()) == []

    def test_a_failed_put_leaves_nothing(self, store: Store, workspace: DatabricksDouble, tmp_path: Path) -> None:
        """Neither object nor temporary remains; an old object stays."""
        workspace.write("/data/sets/a", b"old")
        workspace.faults.append(("POST /api/2.0/dbfs/close", Reply(500)))
        with pytest.raises(StoreBusyError):
            self.put(store, "a", b"new", tmp_path)
        assert {path: file.content for path, file in workspace.files.items()} == {"/data/sets/a": b"old"}

    @pytest.mark.parametrize("old", [None, b"old"])
    @pytest.mark.parametrize("refused", [set(), {1}, {2}, {3}, {3, 4}, {1, 2, 3, 4}])
    def test_a_refused_move_loses_nothing(
        self, store: Store, workspace: DatabricksDouble, tmp_path: Path, old: bytes | None, refused: set[int]
    ) -> None:
        """The old object stays, or the error names its place; a target that exists is no reason to fail."""
        if old is not None:
            workspace.write("/data/sets/a", old)
        workspace.refused_moves = refused
        error: Exception | None = None
        try:
            self.put(store, "a", b"new", tmp_path)
        except ObjectForbiddenError as refusal:
            error = refusal
        left = {path: file.content for path, file in workspace.files.items()}
        if error is None:
            assert left == {"/data/sets/a": b"new"}
        else:
            assert refused
            assert list(left.values()) == ([old] if old is not None else [])
            assert "/data/sets/a" in left or all(repr(path) in str(error) for path in left)

    def test_the_sdk_reads_what_was_put(self, store: Store, workspace: DatabricksDouble, tmp_path: Path) -> None:
        """So the double has the interface that Databricks' own library uses."""
        content = os.urandom(3 << 20)
        self.put(store, "a", content, tmp_path)
        client = databricks.sdk.WorkspaceClient(host=workspace.url, token="dapi-secret")
        with client.dbfs.download("/data/sets/a") as file:
            assert file.read() == content


def test_a_list_follows_its_pages(workspace: DatabricksDouble) -> None:
    """Its facts equal those of `head`."""
    for i in range(25):
        workspace.write(f"/Volumes/c/s/v/data/{i % 3}/{i}", bytes(i))
    workspace.page_size = 4
    store = opened(workspace)
    listed = sorted(store.list(), key=lambda facts: facts.n_bytes)
    assert [facts.name for facts in listed] == [f"{i % 3}/{i}" for i in range(25)]
    assert listed[7] == store.head("1/7")


def test_a_cut_body_is_an_error(workspace: DatabricksDouble) -> None:
    """A cut read of a volume is an error, and can be resumed."""
    content = os.urandom(3 << 20)
    workspace.write("/Volumes/c/s/v/data/a", content)
    workspace.faults.append(("GET /api/2.0/fs/files", Reply(cut_after=2 << 20)))
    store = opened(workspace)
    whole, got = store.get("a"), bytearray()
    with pytest.raises(TransferDamagedError, match="broke"):
        deque(map(got.extend, whole.chunks))
    got += b"".join(bytes(chunk) for chunk in store.get("a", offset=len(got), version=whole.facts.version).chunks)
    assert got == content


def test_a_workspace_that_is_busy_is_throttled(workspace: DatabricksDouble) -> None:
    """The error has the seconds to wait."""
    for remote, path in ((f"{VOLUME}/data", "fs/files"), ("dbfs:/data", "dbfs/get-status")):
        body = b'{"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "slow down"}'
        workspace.faults.append((f"/api/2.0/{path}", Reply(429, body, {"Retry-After": "4"})))
        with pytest.raises(StoreBusyError, match="REQUEST_LIMIT_EXCEEDED: slow down") as caught:
            opened(workspace, remote).get("a")
        assert (caught.value.is_throttled, caught.value.retry_after_s) == (True, 4.0)


def test_a_wrong_token_is_forbidden(workspace: DatabricksDouble) -> None:
    """No message contains the token."""
    for remote in (f"{VOLUME}/data", "dbfs:/data"):
        with pytest.raises(ObjectForbiddenError, match="token of storage_options") as caught:
            opened(workspace, remote, token="dapi-wrong").head("a")
        assert "dapi-wrong" not in str(caught.value)


def test_the_stored_size_is_compared(workspace: DatabricksDouble, tmp_path: Path) -> None:
    """An upload that lost bytes is an error."""
    (tmp_path / "file").write_bytes(b"abc")
    workspace.write("/Volumes/c/s/v/data/a", b"ab")
    workspace.faults.append(("PUT /api/2.0/fs/files", Reply(204)))
    with pytest.raises(TransferDamagedError, match="3 bytes were sent, 2 are there"):
        opened(workspace).put("a", str(tmp_path / "file"))


def test_the_sdk_logs_in_by_oauth(workspace: DatabricksDouble) -> None:
    """A service principal logs in; the error for a wrong secret does not contain it."""
    workspace.write("/Volumes/c/s/v/data/a", b"abc")
    own = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
    assert opened(workspace, **own).head("a").n_bytes == 3
    assert any(
        request.headers["Authorization"].startswith("Bearer oauth-") for request in workspace.asked("HEAD", "/a")
    )
    with pytest.raises(ObjectForbiddenError) as caught:
        opened(workspace, **(own | {"client_secret": "wrong-secret"})).head("a")
    assert "wrong-secret" not in str(caught.value)


def test_contradictions_are_refused(workspace: DatabricksDouble) -> None:
    """A token with another log-in, a malformed endpoint, and an option of other stores are errors."""
    with pytest.raises(OptionError, match="not both"):
        opened(workspace, token="t", client_id="c")
    with pytest.raises(OptionError, match="takes no 'region'"):
        opened(workspace, region="r")
