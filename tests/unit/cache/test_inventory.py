"""Scans of cache folders: which files they hold, and which of these may be evicted."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from streaming.cache.files import PRIVATE_FOLDER, table_name
from streaming.cache.inventory import Inventory
from streaming.cache.ledger import outermost_roots
from streaming.cache.origin import ORIGIN_NAME, claim, origin_of
from streaming.fetch.wire.protocol import FileRequest
from support.disks import write_dataset


def fill(folder: Path, *listed: str, others: Collection[str] = ()) -> None:
    """Write files of ten bytes: shards that an index lists, and others."""
    needs = [FileRequest(0, name, 10, f"{name}.zstd", 10, "zstd") for name in listed]
    write_dataset(folder, needs, others=[*listed, *others])


def evictable(root: Path, *, copies: Collection[str] = (), sources: Collection[str] = ()) -> set[str]:
    """The paths, relative to the root, that may be evicted."""
    contents = Inventory().scan([str(root)], copies, sources)
    return {os.path.relpath(path, root) for path, file in contents.files.items() if file.is_evictable}


def test_only_files_that_the_index_of_a_copy_lists_are_evictable(tmp_path: Path) -> None:
    """In every form that we make of them; neither the index nor the mark nor anything else."""
    forms = {"a", "a.zstd", table_name("a")}
    fill(tmp_path, "a", others=["a.zstd", table_name("a"), "b", "notes"])
    assert evictable(tmp_path) == set()
    assert evictable(tmp_path, copies=[str(tmp_path)]) == forms
    claim(str(tmp_path), origin_of("s3://b", "s3://b"))
    assert evictable(tmp_path) == forms


def test_a_folder_inside_answers_for_itself(tmp_path: Path) -> None:
    """A mark covers its own folder, and the files that its index lists below it."""
    fill(tmp_path, "a")
    fill(tmp_path / "inside", "b")
    claim(str(tmp_path), origin_of("s3://b", "s3://b"))
    assert evictable(tmp_path) == {"a"}
    claim(str(tmp_path / "inside"), origin_of("s3://c", "s3://c"))
    assert evictable(tmp_path) == {"a", "inside/b"}


def test_nothing_in_a_source_is_evictable(tmp_path: Path) -> None:
    """Though it says that it is a copy, and whatever path leads there."""
    fill(tmp_path / "data", "a")
    claim(str(tmp_path / "data"), origin_of("s3://b", "s3://b"))
    (tmp_path / "link").symlink_to(tmp_path / "data")
    real = os.path.realpath(tmp_path / "data")
    assert evictable(tmp_path / "data", sources=[real]) == set()
    assert evictable(tmp_path / "link", copies=[str(tmp_path / "link")], sources=[real]) == set()


def test_links_take_no_room_and_private_folders_are_not_scanned(tmp_path: Path) -> None:
    """A link is the user's."""
    fill(tmp_path, "a")
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    (tmp_path / "a").symlink_to("elsewhere")
    (tmp_path / PRIVATE_FOLDER).mkdir()
    (tmp_path / PRIVATE_FOLDER / "log").write_bytes(bytes(99))
    contents = Inventory().scan([str(tmp_path)], [str(tmp_path)], [])
    assert {os.path.basename(path) for path in contents.files} == {"index.json", "elsewhere"}
    assert evictable(tmp_path, copies=[str(tmp_path)]) == set()


def test_an_index_that_changed_is_read_again(tmp_path: Path) -> None:
    """One that cannot be read lists nothing."""
    inventory = Inventory()

    def listed() -> int:
        return sum(file.is_evictable for file in inventory.scan([str(tmp_path)], [str(tmp_path)], []).files.values())

    fill(tmp_path, "a", "b")
    assert [listed(), listed()] == [2, 2]
    fill(tmp_path, "a", "b", "c")
    assert listed() == 3
    (tmp_path / "index.json").write_text("{")
    assert listed() == 0


def test_a_root_inside_another_is_scanned_once() -> None:
    """Else its files would count twice; a name that only begins alike is another root."""
    assert outermost_roots(["/a/b", "/a", "/a-b", "/a/b/c", "/c"]) == ["/a", "/a-b", "/c"]
    assert outermost_roots(["/", "/a"]) == ["/"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_a_file_that_this_user_cannot_delete_is_not_evictable(tmp_path: Path) -> None:
    """In a folder that is not ours to write; or another user's file where each user deletes only their own."""
    fill(tmp_path, "ours", "theirs")
    os.chown(tmp_path / "ours", 12345, -1)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(0o755)
    found = []
    for mode in (0o755, 0o777, 0o1777):
        tmp_path.chmod(mode)
        os.seteuid(12345)
        try:
            found.append(evictable(tmp_path, copies=[str(tmp_path)]))
        finally:
            os.seteuid(0)
    assert found == [set(), {"ours", "theirs"}, {"ours"}]


def test_a_folder_belongs_to_the_first_claim(tmp_path: Path) -> None:
    """A later claim gets the first one's origin; a mark that cannot be read claims nothing."""
    one, two = origin_of("s3://one", "s3://one"), origin_of("s3://two", "s3://two")
    assert claim(str(tmp_path), one) == one
    assert claim(str(tmp_path), two) == one
    (tmp_path / ORIGIN_NAME).write_text("{")
    assert claim(str(tmp_path), two) == two
    assert os.listdir(tmp_path) == [ORIGIN_NAME]
