"""Where errors of a client library, or of the system, become errors of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from streaming.errors import StorageError, StreamingError


@contextlib.contextmanager
def translating_errors(
    translate: Callable[[Exception], StorageError | None], *, shows_cause: bool = True
) -> Iterator[None]:
    """Run a block whose errors are raised as what `translate` makes of them.

    This package's own errors pass unchanged, and so do those for which `translate` gives None. `shows_cause=False` is
    for libraries whose errors run over a page and say nothing that the translation does not.
    """
    try:
        yield
    except StreamingError:
        raise
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from (error if shows_cause else None)
    except BaseException as error:
        # A native client that panics raises what no `except Exception` catches, which would end the fetcher's thread.
        if type(error).__name__ != "PanicException":
            raise
        raise StorageError(
            f"the store's client gave up on a request that it cannot make ({str(error)[:200]}); check names and "
            "credentials for characters that no header can hold"
        ) from None
