"""A folder as a store, beyond the contract of all stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.errors import StorageError
from streaming.storage.local import FolderStore


def test_a_folder_that_cannot_be_read_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    """One that is not there is empty, as a prefix without objects is; so is a file."""
    (tmp_path / "file").touch()
    assert list(FolderStore(str(tmp_path / "nowhere")).list()) == []
    assert list(FolderStore(str(tmp_path)).list("file")) == []
    with pytest.raises(StorageError, match="File name too long"):
        next(FolderStore(str(tmp_path)).list("x" * 300))
