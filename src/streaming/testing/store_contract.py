"""What every store must do, as tests that any store can run. Needs pytest.

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MyStore("an empty folder")
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from streaming.errors import ObjectMissingError, StorageError, StoreCannotError, TransferDamagedError
from streaming.storage.store import Store


class StoreContract:
    """Derive from this in a class whose name begins with Test, and provide the fixture `store`, an empty store."""

    can_list: ClassVar[bool] = True  # False: `list` must raise StoreCannotError

    @pytest.fixture
    def store(self) -> Store:
        """An empty store, new for each test."""
        raise NotImplementedError

    def put(self, store: Store, name: str, content: bytes, folder: Path) -> None:
        """Store `content` as `name`, through a file in `folder`."""
        (folder / "to-put").write_bytes(content)
        store.put(name, str(folder / "to-put"))

    def test_what_is_put_is_got(self, store: Store, tmp_path: Path) -> None:
        """Objects come back whole, with name and size; empty and large ones too."""
        for name, content in {"a": b"abc", "deep/er/b c": b"", "big": os.urandom(10 << 20)}.items():
            self.put(store, name, content, tmp_path)
            got = store.get(name)
            assert (got.facts.name, got.facts.n_bytes, got.offset) == (name, len(content), 0)
            assert b"".join(got.chunks) == content
            assert store.head(name).n_bytes == len(content)

    @pytest.mark.parametrize("name", ["a b", "ümläut/日本", "a%20b", "a#b", "a?b=c&d", "a+b", "[x]~(y)", "a'b;c"])
    def test_names_are_what_they_are(self, store: Store, tmp_path: Path, name: str) -> None:
        """No character of a name has a meaning of its own."""
        self.put(store, name, name.encode(), tmp_path)
        assert b"".join(store.get(name).chunks) == name.encode()
        assert store.head(name).name == name
        if self.can_list:
            assert [facts.name for facts in store.list()] == [name]

    def test_a_put_replaces(self, store: Store, tmp_path: Path) -> None:
        """The new content replaces the old, and the version changes."""
        self.put(store, "a", b"abc", tmp_path)
        before = store.head("a").version
        self.put(store, "a", b"defgh", tmp_path)
        assert b"".join(store.get("a").chunks) == b"defgh"
        assert before is None or store.head("a").version != before

    def test_a_put_tells_how_far_it_is(self, store: Store, tmp_path: Path) -> None:
        """The last report is the whole size."""
        (tmp_path / "file").write_bytes(bytes(3 << 20))
        reported: list[int] = []
        store.put("a", str(tmp_path / "file"), moved=reported.append)
        assert max(reported) == 3 << 20

    def test_a_get_goes_on_from_an_offset(self, store: Store, tmp_path: Path) -> None:
        """It continues the same version, and refuses another one."""
        self.put(store, "a", b"0123456789", tmp_path)
        version = store.head("a").version
        rest = store.get("a", offset=4, version=version)
        assert (rest.offset, rest.facts.n_bytes, b"".join(rest.chunks)) == (4, 10, b"456789")
        self.put(store, "a", b"9876543210", tmp_path)
        if version is not None:
            with pytest.raises(TransferDamagedError):
                store.get("a", offset=4, version=version)

    def test_a_range_comes_as_asked(self, store: Store, tmp_path: Path) -> None:
        """With the facts of the object. A range beyond the end is an error, never fewer bytes."""
        self.put(store, "a", b"0123456789", tmp_path)
        for begin, end in ((7, 10), (0, 2), (1, 3), (0, 10)):
            part = store.get_range("a", begin, end)
            assert (bytes(part.data), part.facts.n_bytes) == (b"0123456789"[begin:end], 10)
        for begin, end in ((8, 12), (10, 12), (20, 22)):
            with pytest.raises(TransferDamagedError):
                store.get_range("a", begin, end)

    def test_a_range_is_of_one_version(self, store: Store, tmp_path: Path) -> None:
        """Where the store has versions, a range of a replaced object is an error."""
        self.put(store, "a", b"0123456789", tmp_path)
        version = store.get_range("a", 0, 1).facts.version
        assert version == store.head("a").version
        assert store.get_range("a", 2, 4, version=version).data == b"23"
        self.put(store, "a", b"9876543210", tmp_path)
        if version is not None:
            with pytest.raises(TransferDamagedError):
                store.get_range("a", 2, 4, version=version)

    def test_a_list_is_all_below_a_folder(self, store: Store, tmp_path: Path) -> None:
        """At any depth, with sizes; names that merely share a prefix with the folder are not listed."""
        for name in ("a", "sub/b", "sub/deep/c", "submarine"):
            self.put(store, name, name.encode(), tmp_path)
        if not self.can_list:
            with pytest.raises(StoreCannotError):
                next(store.list(), None)
            return
        assert {facts.name: facts.n_bytes for facts in store.list()} == {
            "a": 1,
            "sub/b": 5,
            "sub/deep/c": 10,
            "submarine": 9,
        }
        assert {facts.name for facts in store.list("sub")} == {"sub/b", "sub/deep/c"}
        assert list(store.list("nowhere")) == []

    def test_what_is_deleted_is_gone(self, store: Store, tmp_path: Path) -> None:
        """It is missing afterwards, and deleting it again is no error."""
        self.put(store, "a", b"abc", tmp_path)
        for _ in range(2):
            store.delete("a")
        for ask in (store.get, store.head):
            with pytest.raises(ObjectMissingError, match="a"):
                ask("a")
        with pytest.raises(ObjectMissingError, match="a"):
            store.get_range("a", 0, 1)

    def test_a_missing_file_is_not_put(self, store: Store, tmp_path: Path) -> None:
        """A file that does not exist raises a StorageError, and makes no object."""
        with pytest.raises(StorageError):
            store.put("a", str(tmp_path / "nothing"))
        with pytest.raises(ObjectMissingError):
            store.head("a")

    def test_threads_share_a_store(self, store: Store, tmp_path: Path) -> None:
        """Each thread gets what it asked for."""
        contents = {f"{i}": os.urandom(200_000 + i) for i in range(8)}
        for name, content in contents.items():
            self.put(store, name, content, tmp_path)
        wrong: list[str] = []

        def read(name: str) -> None:
            content = contents[name]
            for begin in range(0, 100_000, 20_000):
                whole = b"".join(store.get(name).chunks)
                part = store.get_range(name, begin, begin + 99).data
                if (whole, part) != (content, content[begin : begin + 99]):
                    wrong.append(name)

        threads = [threading.Thread(target=read, args=(name,)) for name in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_many_are_put_into_a_new_folder_at_once(self, store: Store, tmp_path: Path) -> None:
        """Like a writer whose shards are ready together. Repeated, because the race that this looks for is rare."""
        names = [f"folder {number // 8}/below/{number}" for number in range(64)]
        (tmp_path / "file").write_bytes(b"seven")
        with ThreadPoolExecutor(8) as threads:
            for _ in threads.map(lambda name: store.put(name, str(tmp_path / "file")), names):
                pass
        assert {name: b"".join(store.get(name).chunks) for name in names} == dict.fromkeys(names, b"seven")

    def test_a_content_that_nobody_reads_leaves_nothing_open(self, store: Store, tmp_path: Path) -> None:
        """A content that is dropped unread, or half read, closes its files and connections."""
        self.put(store, "a", bytes(5 << 20), tmp_path)
        for _ in range(50):
            content: Any = store.get("a")
            next(content.chunks)
            store.get("a")
        content = None
        assert len(os.listdir("/proc/self/fd")) < 200
