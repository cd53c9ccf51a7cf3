"""What the headers of an HTTP answer say: pure."""

from __future__ import annotations

import email.utils
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_WINDOW: Final = re.compile(r";\s*t\s*=\s*(\d{1,9})")
_STRAY_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_IN_PATHS: Final = "/~!$&'()*+,;=:@"


@dataclass(frozen=True, slots=True)
class Body:
    """Which bytes of an object an answer brings."""

    begin: int
    end: int | None  # None: until it is over
    n_bytes: int | None  # of the object; None: it is not said


def body_of(status: int, headers: Mapping[str, str]) -> Body | None:
    """What an answer with this status brings; None if it contradicts itself."""
    if status == 206:
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
        if found is None:
            return None
        begin, last = int(found[1]), int(found[2])
        n_bytes = None if found[3] == "*" else int(found[3])
        if last < begin or (n_bytes is not None and last >= n_bytes):
            return None
        return Body(begin, last + 1, n_bytes)
    length = headers.get("Content-Length", "").strip()
    if not length:
        return Body(0, None, None)
    return Body(0, int(length), int(length)) if length.isdigit() else None


def version_of(headers: Mapping[str, str]) -> str | None:
    """What changes when the object does: its ETag, else when it was last modified."""
    return headers.get("ETag") or headers.get("Last-Modified") or None


def condition_for(version: str | None) -> dict[str, str]:
    """The headers that ask for this version and no other; a weak ETag cannot be asked for."""
    if version is None or version.startswith("W/"):
        return {}
    return {"If-Match": version} if version.startswith('"') else {"If-Unmodified-Since": version}


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """How many seconds the server asks to wait: `Retry-After` holds them, or a date. `now_s` is the wall clock's time.

    Else `RateLimit` may say when its window is over (`"api";r=0;t=55`).

    >>> retry_after_s({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 1445412470.0)
    10.0
    """
    said = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", said):
        return float(said)
    if not said:
        window = _WINDOW.search(headers.get("RateLimit", ""))
        return float(window[1]) if window else None
    try:
        moment = email.utils.parsedate_to_datetime(said)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - now_s)


def url_of(base: str, name: str, query: str = "") -> str:
    """The URL of the object `name`, which is taken as it stands, below `base`, which is a URL already.

    What a browser would encode in `base` is encoded; what is encoded stays.

    >>> url_of("https://host/a b%20c", "50%?/x#", "sig=1")
    'https://host/a%20b%20c/50%25%3F/x%23?sig=1'
    """
    begun = urllib.parse.quote(_STRAY_PERCENT.sub("%25", base), safe=_IN_PATHS + "%[]")
    path = f"{begun.rstrip('/')}/{urllib.parse.quote(name, safe=_IN_PATHS)}" if name else begun
    return f"{path}?{query.lstrip('?')}" if query else path
