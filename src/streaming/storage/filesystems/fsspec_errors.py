"""What the errors of fsspec's file systems mean: each has those of its own client."""

from __future__ import annotations

import builtins
import errno
import ftplib

from streaming.errors import NoRoomError, ObjectForbiddenError, ObjectMissingError, StorageError
from streaming.storage.common.meaning import Answer, Asked, Meaning, meaning_of, unreachable


def meaning_of_error(error: Exception, asked: Asked) -> Meaning:
    """By what it says of itself: a status of HTTP, else the builtin that it is, else where it comes from."""
    text = f"{type(error).__name__}: {error}"[:300]
    status = _status(error)
    if status is not None:
        answer = Answer(status, message=str(error)[:300])
        return meaning_of(answer, has_credentials=asked.has_credentials)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return Meaning(ObjectMissingError, "it does not exist, or is no file", "check the path")
    if isinstance(error, PermissionError):
        return Meaning(ObjectForbiddenError, f"it is refused ({text})", "check who may read or write it")
    if isinstance(error, ftplib.error_perm):
        kind = ObjectForbiddenError if str(error).startswith("530") else StorageError
        return Meaning(kind, text, "check the user, the password and the path")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Meaning(NoRoomError, "no room is left there", "make room or take another place")
    if isinstance(error, ConnectionError | TimeoutError | EOFError) or not _is_builtin(error):
        return unreachable(text)  # of a client of the network, or its library: worth another try
    return Meaning(StorageError, text, "check the path and the storage_options")


def _status(error: Exception) -> int | None:
    """Of an error of a client of HTTP."""
    response = getattr(error, "response", None)
    for found in (getattr(error, "status", None), getattr(error, "code", None), getattr(response, "status_code", None)):
        if isinstance(found, int) and 300 <= found < 600:
            return found
    return None


def _is_builtin(error: Exception) -> bool:
    return getattr(builtins, type(error).__name__, None) is type(error)
