"""Diagnosis of errors of fsspec's file systems, each of which has its own."""

from __future__ import annotations

import errno
import ftplib

import pytest

from streaming.errors import (
    NoRoomError,
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
)
from streaming.storage.common.diagnosis import Access
from streaming.storage.filesystems.fsspec_errors import diagnose_error

ACCESS = Access("tape://a", "tape://", "storage_options: none", has_credentials=False)


class ClientResponseError(Exception):
    """An error like that of an HTTP client."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("a"), ObjectMissingError),
        (IsADirectoryError("a"), ObjectMissingError),
        (PermissionError("a"), ObjectForbiddenError),
        (OSError(errno.ENOSPC, "full"), NoRoomError),
        (OSError(errno.EIO, "broken"), StorageError),
        (ConnectionResetError("a"), StoreUnreachableError),
        (TimeoutError("a"), StoreUnreachableError),
        (EOFError(), StoreUnreachableError),
        (ftplib.error_temp("421 too many"), StoreUnreachableError),
        (ftplib.error_perm("530 who are you"), ObjectForbiddenError),
        (ftplib.error_perm("553 no"), StorageError),
        (ClientResponseError(404), ObjectMissingError),
        (ClientResponseError(403), ObjectForbiddenError),
        (ClientResponseError(503), StoreBusyError),
        (ValueError("a"), StorageError),
    ],
)
def test_an_error_is_diagnosed_by_its_status_or_kind(error: Exception, kind: type[StorageError]) -> None:
    """It is diagnosed by HTTP status or builtin kind; another error of a network client is worth another attempt."""
    found = diagnose_error(error, ACCESS).error("a", ACCESS)
    assert type(found) is kind
    assert "tape://a/a" in str(found)
