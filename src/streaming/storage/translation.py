"""Errors of a client library or the system as errors of this package: where they cross into it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from streaming.errors import StorageError, StreamingError


@contextlib.contextmanager
def translating_errors(translate: Callable[[Exception], StorageError | None]) -> Iterator[None]:
    """Run a block whose errors are raised as what `translate` makes of them.

    This package's own errors pass unchanged, and so do those for which `translate` gives None.
    """
    try:
        yield
    except StreamingError:
        raise
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error
