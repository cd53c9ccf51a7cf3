"""The fetcher's log: its standard error."""

from __future__ import annotations

import contextlib
import sys
import time


def log(words: str) -> None:
    """Write one entry. A full disk must not stop what is logged."""
    with contextlib.suppress(OSError, ValueError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), words, file=sys.stderr, flush=True)  # noqa: T201
