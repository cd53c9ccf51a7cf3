"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def appearing(path: str) -> Iterator[IO[bytes]]:
    """A new file to write, which gets its name `path` when the block ends well and vanishes when it does not.

    It lies beside its final place meanwhile, so that the last step is a rename. Losing a race is success: the last
    writer's file stays.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_file(path: str, data: bytes) -> None:
    """Write a file that appears whole."""
    with appearing(path) as file:
        file.write(data)


def copy_file(source: str, path: str) -> None:
    """Copy a file to one that appears whole; makes the folders above it."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(source, "rb") as original, appearing(path) as copy:
        shutil.copyfileobj(original, copy, 1 << 20)
