"""A folder as a store, beyond the contract of all stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.errors import StorageError
from streaming.storage.local import FolderStore


def test_an_unreadable_folder_is_an_error_and_not_empty(tmp_path: Path) -> None:
    """A missing folder is empty, like a prefix without objects, and so is a file."""
    (tmp_path / "file").touch()
    assert list(FolderStore(str(tmp_path / "nowhere")).list()) == []
    assert list(FolderStore(str(tmp_path)).list("file")) == []
    with pytest.raises(StorageError, match="File name too long"):
        next(FolderStore(str(tmp_path)).list("x" * 300))
