"""Uploads at a store that refuses: what may pass is tried again for minutes, what cannot be mended fails at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streaming.errors import (
    ObjectForbiddenError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
    WriteError,
)
from streaming.fetch.transfer.stores import Attempts, TransferProgress
from streaming.storage.local import FolderStore
from streaming.testing import Fault, FaultProxy, FaultRule, S3Server
from streaming.write.uploader import UPLOAD_PATIENCE_S, FolderUploader
from streaming.write.writers import MDSWriter

COLUMNS = {"n": "int"}
PASSING = {
    "500": Fault(status=500, code="InternalError"),
    "503": Fault(status=503, code="InternalError"),
    "slow down": Fault(status=503),
    "429": Fault(status=429),
    "reset before": Fault(reset="before"),
    "reset after": Fault(reset="after"),
}


def write(out: object, n_samples: int = 100, **arguments: object) -> None:
    """Write samples of a number each, a few shards."""
    with MDSWriter(columns=COLUMNS, out=out, size_limit=500, **arguments) as writer:  # type: ignore[arg-type]
        for n in range(n_samples):
            writer.write({"n": n})


def write_and_fail(out: str) -> None:
    """Leave the block by an exception while uploads are under way."""
    with MDSWriter(columns=COLUMNS, out=out, size_limit=500, retry=1) as writer:
        for n in range(100):
            writer.write({"n": n})
        raise ZeroDivisionError


@pytest.fixture
def broken_s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A real S3 server behind a proxy that refuses on demand, set as the endpoint of this process and its children."""
    with FaultProxy.started(upstream=f"127.0.0.1:{s3_server.port}") as proxy:
        for name, value in {**s3_server.variables(), **proxy.variables()}.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("what", ["shard.00001", "index"])
def test_a_conversion_outlives_refusals(
    broken_s3: FaultProxy, s3_server: S3Server, tmp_path: Path, fault: str, what: str
) -> None:
    """More refusals of one file than `retry` says: the dataset is whole all the same."""
    prefix = f"uploads/{fault}/{what}".replace(" ", "-")
    broken_s3.set_rules(FaultRule(PASSING[fault], path=what, method="PUT", times=4))
    write(s3_server.url(prefix), retry=1)
    assert broken_s3.counts().fired == (4,)
    write(str(tmp_path / "expected"))
    for path in (tmp_path / "expected").iterdir():
        assert s3_server.get(f"{prefix}/{path.name}") == path.read_bytes()


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_cannot_be_mended_fails_at_once(broken_s3: FaultProxy, s3_server: S3Server, status: int) -> None:
    """One request, and the error says why."""
    broken_s3.set_rules(FaultRule(Fault(status=status), path="shard.00000", method="PUT"))
    with pytest.raises(WriteError, match=r"shard\.00000") as caught:
        write(s3_server.url(f"uploads/{status}"), n_samples=20, retry=5)
    assert isinstance(caught.value.__cause__, StorageError)
    assert broken_s3.counts().fired == (1,)


def test_leaving_by_an_exception_waits_for_no_upload_that_is_tried_again(
    broken_s3: FaultProxy, s3_server: S3Server
) -> None:
    """Nor does an error of another shard: both end within much less than the patience of uploads."""
    broken_s3.set_rules(FaultRule(PASSING["503"], path="shard.00000", method="PUT"))
    began_s = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        write_and_fail(s3_server.url("uploads/left"))
    refused = (
        FaultRule(PASSING["503"], path="shard.00000", method="PUT"),
        FaultRule(Fault(status=403), path="shard.00001", method="PUT"),
    )
    broken_s3.set_rules(*refused)
    with pytest.raises(WriteError, match=r"shard\.00001"):
        write(s3_server.url("uploads/spoilt"), retry=1, max_workers=2)
    assert time.monotonic() - began_s < UPLOAD_PATIENCE_S / 2


class Refusing:
    """A folder that refuses its first uploads."""

    def __init__(self, folder: str, n_refused: int, error: StorageError) -> None:
        self.store, self.n_left, self.error, self.n_asked = FolderStore(folder), n_refused, error, 0

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store."""
        self.n_asked += 1
        if self.n_left:
            self.n_left -= 1
            raise self.error
        self.store.put(name, path, moved=moved)


def test_a_folder_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    """As a store is; what cannot be mended is told after one attempt."""
    (tmp_path / "file").write_bytes(b"abc")
    uploader = FolderUploader(str(tmp_path / "remote"), retry=1)
    uploader._store = away = Refusing(str(tmp_path / "remote"), 3, StoreUnreachableError("away"))  # type: ignore[assignment]
    uploader.put(str(tmp_path / "file"), "a/b")
    assert (tmp_path / "remote" / "a" / "b").read_bytes() == b"abc"
    assert away.n_asked == 4
    uploader._store = closed = Refusing(str(tmp_path / "remote"), 3, ObjectForbiddenError("closed"))  # type: ignore[assignment]
    with pytest.raises(ObjectForbiddenError, match="closed"):
        uploader.put(str(tmp_path / "file"), "c")
    assert closed.n_asked == 1


@pytest.mark.parametrize(("patience_s", "retry", "least"), [(0.0, 3, 3), (0.6, 1, 2), (0.0, 1, 1)])
def test_attempts_end(patience_s: float, retry: int, least: int) -> None:
    """After those that are allowed, and not before the patience is over; no wait is endless."""
    progress = TransferProgress()
    attempts = Attempts("x", retry, progress, rng=random.Random(0), patience_s=patience_s)
    n_asked, began_s = 0, time.monotonic()

    def refused() -> None:
        nonlocal n_asked
        n_asked += 1
        raise StoreBusyError("busy")

    with pytest.raises(StoreBusyError, match=r"busy \(attempt"):
        attempts.repeat(refused)
    assert n_asked >= least
    assert time.monotonic() - began_s >= patience_s
