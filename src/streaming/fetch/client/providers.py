"""The user's functions that give credentials, in the process in which they live."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from streaming.errors import ObjectForbiddenError, OptionError
from streaming.fetch.wire.credentials import CredentialProvider, Credentials, call_provider

_log: Final = logging.getLogger("streaming")
_MAX_CALLS: Final = 4
"""Calls of a function for one request."""
_PAUSE_S: Final = 0.5
_AGAIN_S: Final = 5.0
"""Seconds between two calls for credentials that are not needed yet."""


class Providers:
    """The functions of a job, by credentials key."""

    def __init__(self, functions: Mapping[str, CredentialProvider]) -> None:
        self._functions = functions
        self._called_s: dict[str, float] = {}

    def wanted(self, key: str, n_wanted: int) -> Credentials:
        """Credentials that are needed now, for the `n_wanted`th time by one request.

        Raises ObjectForbiddenError if the function gives none that hold, OptionError if it gives something else.
        """
        title = _title(key)
        if n_wanted > _MAX_CALLS or key not in self._functions:
            raise ObjectForbiddenError(f"{title}: the function `credentials` gives none that are still good")
        n_failed = 0
        while True:
            try:
                return call_provider(self._functions[key], title)
            except OptionError:
                raise
            except Exception as error:
                n_failed += 1
                if n_failed == _MAX_CALLS:
                    raise ObjectForbiddenError(
                        f"{title}: the function `credentials` failed {n_failed} times, at last with {error!r}"
                    ) from error
            time.sleep(_PAUSE_S * 2 ** (n_failed - 1))

    def due(self, keys: Sequence[str]) -> Iterator[tuple[str, Credentials]]:
        """Credentials that will be needed soon, by key. A function that fails is called again later."""
        for key in keys:
            now_s = time.monotonic()
            if key in self._functions and now_s - self._called_s.get(key, float("-inf")) > _AGAIN_S:
                self._called_s[key] = now_s
                try:
                    credentials = call_provider(self._functions[key], _title(key))
                except Exception as error:
                    _log.warning("%s: credentials were not renewed, those at hand are used on: %r", _title(key), error)
                else:
                    yield key, credentials


def _title(key: str) -> str:
    return f"stream {key.rpartition('.')[2]}"
