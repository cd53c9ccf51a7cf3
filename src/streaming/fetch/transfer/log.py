"""The fetcher's log: its standard error."""

from __future__ import annotations

import contextlib
import sys
import time

from streaming.storage.common.redaction import without_secrets


def log(words: str) -> None:
    """Write one entry, without users and queries of URLs. A full disk must not stop what is logged."""
    with contextlib.suppress(OSError, ValueError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), without_secrets(words), file=sys.stderr, flush=True)  # noqa: T201
