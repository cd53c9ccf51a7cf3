"""Real servers for tests. Without the server's program a test is skipped; where CI is set, it fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TypeVar

import pytest

from streaming.errors import MissingExtraError
from streaming.testing.program import MissingProgramError

T = TypeVar("T")


def started(server: contextlib.AbstractContextManager[T]) -> Iterator[T]:
    """Yield the running server; for fixtures to yield from."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(server)
        except (MissingExtraError, MissingProgramError) as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no server: {error}")
        yield running
