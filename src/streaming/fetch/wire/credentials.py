"""Credentials that the user's own function gives, and that expire.

The function lives in the user's process and is never sent anywhere. The fetcher keeps what the function gave, says when
it needs more, and never uses what has expired; the client then calls the function and sends what it returns.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from streaming.errors import OptionError

CredentialProvider: TypeAlias = Callable[[], Mapping[str, Any]]
"""Returns storage options, and `expires_at` if they expire: seconds since 1970, a datetime, or a text in ISO form."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Options for a store, and their end in seconds since 1970 (infinite if they do not expire)."""

    options: Mapping[str, Any] = field(repr=False)
    expires_s: float = float("inf")


def call_provider(provider: CredentialProvider, title: str) -> Credentials:
    """Call the user's function. Raises OptionError if it returns no credentials, and whatever it raises itself.

    `title` names the stream in errors.
    """
    given = provider()
    if not isinstance(given, Mapping):
        raise OptionError(
            f"{title}: the function `credentials` must return a mapping of options, not {type(given).__name__}"
        )
    options = dict(given)
    expires = options.pop("expires_at", None)
    try:
        json.dumps(options)
    except (TypeError, ValueError):
        raise OptionError(
            f"{title}: the function `credentials` returned something else than texts and numbers among "
            f"{', '.join(sorted(map(str, options)))}"
        ) from None
    return Credentials(options, _seconds(expires, title))


def credentials_key_of(job: str, stream: int) -> str:
    """The name under which the credentials of a job's stream are kept."""
    return f"{job}.{stream}"


def _seconds(expires: object, title: str) -> float:
    if expires is None:
        return float("inf")
    if isinstance(expires, str):
        try:
            expires = datetime.datetime.fromisoformat(expires)
        except ValueError:
            raise OptionError(f"{title}: the function `credentials` returned an expires_at that is no time") from None
    if isinstance(expires, datetime.datetime):
        return expires.timestamp()
    if isinstance(expires, int | float) and not isinstance(expires, bool):
        return float(expires)
    raise OptionError(f"{title}: expires_at must be seconds since 1970 or a datetime, not {type(expires).__name__}")
