"""File systems of fsspec keep the contract: in memory, a folder, and FTP against a real server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec import AbstractFileSystem, register_implementation
from fsspec.implementations.local import LocalFileSystem

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreCannotError,
    StoreUnreachableError,
)
from streaming.storage.filesystems.fsspec import FileSystemStore, open_filesystem
from streaming.storage.open_stores import Stores
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Store
from streaming.storage.url import Bucket, parse_remote
from streaming.testing.store_contract import StoreContract
from support.ftp_server import PASSWORD, USER, FtpServer

_numbers = itertools.count()


def opened(scheme: str, name: str, prefix: str, **options: Any) -> FileSystemStore:
    return open_filesystem(Bucket(scheme, name, prefix), StoreSettings(options, {}, timeout_s=20.0))


class TestMemoryFileSystem(StoreContract):
    """memory://, in this process."""

    @pytest.fixture
    def store(self) -> Store:
        return opened("memory", f"place-{next(_numbers)}", "some/where")


class TestFolderFileSystem(StoreContract):
    """dir:// over file://, whose files can be moved."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        self._folder = tmp_path / "store"
        return opened("dir", "", "", path=str(self._folder), target_protocol="file")

    def test_temporaries_are_not_objects(self, store: Store) -> None:
        """Unfinished uploads of another writer are not listed."""
        self._folder.mkdir()
        (self._folder / ".a.0123456789abcdef.tmp").touch()
        assert list(store.list()) == []

    def test_a_failed_put_leaves_nothing(self, store: Store, tmp_path: Path) -> None:
        """Here a folder has the object's name."""
        (self._folder / "a" / "b").mkdir(parents=True)
        (tmp_path / "file").write_bytes(b"abc")
        with pytest.raises(StorageError):
            store.put("a/b", str(tmp_path / "file"))
        assert [path.name for path in self._folder.rglob("*")] == ["a", "b"]

    def test_a_folder_is_not_an_object(self, store: Store) -> None:
        """Neither for `get` nor for `head`."""
        (self._folder / "sub").mkdir(parents=True)
        for ask in (store.get, store.head):
            with pytest.raises(ObjectMissingError, match="no file"):
                ask("sub")


@pytest.fixture(scope="module")
def ftp() -> Iterator[FtpServer]:
    with FtpServer.started() as server:
        yield server


# Its clients leave sockets for the collector to close.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
class TestFtp(StoreContract):
    """ftp://, whose file system has one connection and must not be shared by threads."""

    _times: ClassVar[Iterator[int]] = itertools.count(1_000_000_000)

    @pytest.fixture
    def store(self, ftp: FtpServer) -> Store:
        self._folder = f"place-{next(_numbers)}"
        self._ftp = ftp
        return opened("ftp", f"{USER}:{PASSWORD}@127.0.0.1:{ftp.port}", self._folder)

    def put(self, store: Store, name: str, content: bytes, folder: Path) -> None:
        """Put, and advance the file's time by a second: over FTP, versions are size and second."""
        super().put(store, name, content, folder)
        moment_s = next(self._times)
        os.utime(self._ftp.folder / self._folder / name, (moment_s, moment_s))

    def test_a_wrong_password_is_refused(self, ftp: FtpServer) -> None:
        """No message contains the password."""
        store = opened("ftp", f"{USER}:wrong-one@127.0.0.1:{ftp.port}", "place")
        with pytest.raises(ObjectForbiddenError, match="530") as caught:
            store.head("a")
        assert "wrong-one" not in str(caught.value)

    def test_an_absent_server_is_unreachable(self) -> None:
        """The error is worth another attempt."""
        with pytest.raises(StoreUnreachableError, match="refused"):
            opened("ftp", "127.0.0.1:9", "place").head("a")


def test_the_table_opens_what_fsspec_knows(ftp: FtpServer) -> None:
    """A URL with a scheme of its registry is opened."""
    (ftp.folder / "a").write_bytes(b"abc")
    store = Stores({}).open(parse_remote(f"ftp://127.0.0.1:{ftp.port}"), 20.0, {"username": USER, "password": PASSWORD})
    assert store.get_range("a", 1, 3).data == b"bc"


class OnlyReads(AbstractFileSystem):  # type: ignore[misc]
    """A file system of fsspec without an implementation of writing."""

    protocol = "only-reads"

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        raise NotImplementedError(f"no mode {mode}")


class Swallows(AbstractFileSystem):  # type: ignore[misc]
    """A file system that discards all bytes, as the base class of fsspec does."""

    protocol = "swallows"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        raise FileNotFoundError(path)


def test_a_put_to_a_read_only_file_system_is_an_error(tmp_path: Path) -> None:
    """Its error differs from that of a broken store; a put whose bytes were discarded is an error, too."""
    for kind in (OnlyReads, Swallows):
        register_implementation(kind.protocol, kind, clobber=True)
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(StoreCannotError, match="no mode wb"):
        opened("only-reads", "", "folder").put("a", str(tmp_path / "file"))
    with pytest.raises(ObjectMissingError, match="a: it does not exist"):
        opened("swallows", "", "folder").put("a", str(tmp_path / "file"))


class Refuses(LocalFileSystem):  # type: ignore[misc]
    """A file system that does not move onto a file that exists, and refuses some moves by number."""

    protocol = "refuses"
    refused: ClassVar[set[int]] = set()
    kind: ClassVar[type[Exception]] = OSError
    moves: ClassVar[Iterator[int]] = itertools.count(1)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        nth = next(self.moves)
        if nth in self.refused:
            raise self.kind(f"move {nth} is refused")
        if os.path.exists(path2):
            raise FileExistsError(path2)
        os.rename(path1, path2)


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("kind", [OSError, PermissionError, ConnectionError])
@pytest.mark.parametrize("refused", [set(), {1}, {2}, {3}, {1, 3}, {3, 4}, {1, 3, 4}, {1, 2, 3, 4}])
def test_a_refused_move_loses_nothing(
    tmp_path: Path, old: bytes | None, kind: type[Exception], refused: set[int]
) -> None:
    """The old object stays, or the error names its place; a target that exists is no reason to fail."""
    register_implementation("refuses", Refuses, clobber=True)
    Refuses.refused, Refuses.kind, Refuses.moves = refused, kind, itertools.count(1)
    folder = tmp_path / "store"
    folder.mkdir()
    if old is not None:
        (folder / "a").write_bytes(old)
    (tmp_path / "file").write_bytes(b"new")
    error: Exception | None = None
    try:
        opened("refuses", "", str(folder).strip("/")).put("a", str(tmp_path / "file"))
    except StorageError as refusal:
        error = refusal
    left = {path: path.read_bytes() for path in folder.iterdir()}
    if error is None:
        assert left == {folder / "a": b"new"}
    else:
        assert refused
        assert list(left.values()) == ([old] if old is not None else [])
        assert folder / "a" in left or all(repr(str(path)) in str(error) for path in left)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an FTP client's constructor failed
def test_a_file_system_that_cannot_be_opened_is_a_wrong_setting() -> None:
    """A missing package, a missing or senseless option, and a chain of URLs are errors."""
    with pytest.raises(OptionError, match="box"):
        opened("box", "", "a")
    with pytest.raises(OptionError, match="'org' and 'repo'"):
        opened("github", "a", "").head("a")
    with pytest.raises(OptionError, match="nonsense"):
        opened("ftp", "127.0.0.1", "", tls="nonsense").head("a")
    with pytest.raises(OptionError, match="chained"):
        opened("zip", "a.zip::file:", "b.zip")
