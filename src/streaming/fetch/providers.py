"""The user's functions that give credentials, on the side of the process in which they live."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from streaming.errors import ObjectForbiddenError, OptionError
from streaming.fetch.credentials import CredentialProvider, Credentials, provided

_log: Final = logging.getLogger("streaming")
_MAX_CALLS: Final = 4  # for one request
_PAUSE_S: Final = 0.5
_AGAIN_S: Final = 5.0  # between two calls for credentials that are not wanted yet


class Providers:
    """The functions of a job, by the names of their purses."""

    def __init__(self, functions: Mapping[str, CredentialProvider]) -> None:
        self._functions = functions
        self._called_s: dict[str, float] = {}

    def wanted(self, purse: str, n_wanted: int) -> Credentials:
        """What is wanted now, for the `n_wanted`th time by one request. Raises ObjectForbiddenError, OptionError."""
        title = _title(purse)
        if n_wanted > _MAX_CALLS or purse not in self._functions:
            raise ObjectForbiddenError(f"{title}: the function `credentials` gives none that are still good")
        n_failed = 0
        while True:
            try:
                return provided(self._functions[purse], title)
            except OptionError:
                raise
            except Exception as error:
                n_failed += 1
                if n_failed == _MAX_CALLS:
                    raise ObjectForbiddenError(
                        f"{title}: the function `credentials` failed {n_failed} times, at last with {error!r}"
                    ) from error
            time.sleep(_PAUSE_S * 2 ** (n_failed - 1))

    def due(self, purses: Sequence[str]) -> Iterator[tuple[str, Credentials]]:
        """What will be wanted soon; a function that fails is called again later."""
        for purse in purses:
            now_s = time.monotonic()
            if purse in self._functions and now_s - self._called_s.get(purse, float("-inf")) > _AGAIN_S:
                self._called_s[purse] = now_s
                try:
                    credentials = provided(self._functions[purse], _title(purse))
                except Exception as error:
                    _log.warning(
                        "%s: credentials were not renewed, those at hand are used on: %r", _title(purse), error
                    )
                else:
                    yield purse, credentials


def _title(purse: str) -> str:
    return f"stream {purse.rpartition('.')[2]}"
