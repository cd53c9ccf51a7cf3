"""Diagnosis of errors of fsspec's file systems, each of which raises those of its own client. Pure."""

from __future__ import annotations

import builtins
import errno
import ftplib

from streaming.errors import NoRoomError, ObjectForbiddenError, ObjectMissingError, StorageError
from streaming.storage.common.diagnosis import Access, Diagnosis, Refusal, diagnose, unreachable


def diagnose_error(error: Exception, access: Access) -> Diagnosis:
    """Diagnose an error by its HTTP status if it has one, else by the builtin that it is, else by its origin."""
    text = f"{type(error).__name__}: {error}"[:300]
    status = _status(error)
    if status is not None:
        return diagnose(Refusal(status, message=str(error)[:300]), has_credentials=access.has_credentials)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return Diagnosis(ObjectMissingError, "it does not exist, or is no file", "check the path")
    if isinstance(error, PermissionError):
        return Diagnosis(ObjectForbiddenError, f"it is refused ({text})", "check who may read or write it")
    if isinstance(error, ftplib.error_perm):
        kind = ObjectForbiddenError if str(error).startswith("530") else StorageError
        return Diagnosis(kind, text, "check the user, the password and the path")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Diagnosis(NoRoomError, "no room is left there", "make room or take another place")
    if isinstance(error, ConnectionError | TimeoutError | EOFError) or not _is_builtin(error):
        return unreachable(text)  # a network client's, or its library's: worth another attempt
    return Diagnosis(StorageError, text, "check the path and the storage_options")


def _status(error: Exception) -> int | None:
    """Return the HTTP status that an error holds, if any."""
    response = getattr(error, "response", None)
    for found in (getattr(error, "status", None), getattr(error, "code", None), getattr(response, "status_code", None)):
        if isinstance(found, int) and 300 <= found < 600:
            return found
    return None


def _is_builtin(error: Exception) -> bool:
    return getattr(builtins, type(error).__name__, None) is type(error)
