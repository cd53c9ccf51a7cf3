"""Reads bytes at a place of an open file, all of them: the system may give fewer in one call."""

from __future__ import annotations

import os
from typing import Final

_CALL_BYTES: Final = 1 << 30
"""Linux gives at most 2,147,479,552 bytes in one call, and network file systems may give fewer of any number."""


def read_at(file: int, n_bytes: int, offset: int, *, call_bytes: int = _CALL_BYTES) -> bytes | memoryview:
    """The `n_bytes` at `offset`, as few bytes less as the file is short of them. Moves no file position.

    At most `call_bytes` are asked for in one call. Raises OSError.
    """
    begin = os.pread(file, n_bytes if n_bytes < call_bytes else call_bytes, offset)
    if len(begin) == n_bytes or not begin:
        return begin
    whole = memoryview(bytearray(n_bytes))  # filled in place: joined pieces would take the memory twice
    done = len(begin)
    whole[:done] = begin
    del begin
    while done < n_bytes:
        n_read = os.preadv(file, [whole[done : done + call_bytes]], offset + done)
        if not n_read:
            break
        done += n_read
    return whole[:done]
