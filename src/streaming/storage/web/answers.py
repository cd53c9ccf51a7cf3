"""HTTP answers: what their headers say, and their bodies as a store's content, checked against the request."""

from __future__ import annotations

import email.utils
import itertools
import re
import urllib.parse
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import urllib3
import urllib3.exceptions as theirs

from streaming.errors import StorageError, TransferDamagedError
from streaming.storage.common.packed_objects import check_comes_plain
from streaming.storage.store import Content, ObjectFacts, Part

_CHUNK_BYTES: Final = 1 << 18
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_WINDOW: Final = re.compile(r";\s*t\s*=\s*(\d{1,9})")
_STRAY_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_IN_PATHS: Final = "/~!$&'()*+,;=:@"


class HttpAnswer:
    """An answer with a good status. Its body can be read once; it holds a connection until it is read or closed."""

    def __init__(self, response: urllib3.BaseHTTPResponse, translate: Callable[[Exception], StorageError]) -> None:
        """`translate` makes the errors to raise of those of urllib3."""
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response, self._translate = response, translate
        self._release = weakref.finalize(self, _release, response)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body in pieces, as it was sent. Raises the kinds of StorageError."""
        try:
            yield from self._response.stream(_CHUNK_BYTES, decode_content=False)
        except (theirs.HTTPError, OSError) as error:
            self.close()
            raise self._translate(error) from None
        self._release()

    def read(self) -> bytes:
        """Return the whole body; for small ones."""
        return b"".join(self)

    def close(self) -> None:
        """Discard the rest of the body."""
        self._release()


def _release(response: urllib3.BaseHTTPResponse) -> None:
    """Close the connection if more would come on it; after a whole body it is back in the pool already."""
    response.close()


@dataclass(frozen=True, slots=True)
class Body:
    """Which bytes of an object an answer brings."""

    begin: int
    end: int | None  # None: to the end of the answer
    n_bytes: int | None  # size of the object; None if the answer does not say


def body_of(status: int, headers: Mapping[str, str]) -> Body | None:
    """Read which bytes an answer brings; None if it contradicts itself."""
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
    return Body(0, int(length), int(length)) if _LENGTH.fullmatch(length) else None


def content_of(answer: HttpAnswer, facts: ObjectFacts, offset: int, *, shown: str) -> Content:
    """Make the content from `offset` on, also of an answer that brings the whole object."""
    _check_plain(answer, facts, shown)
    body = body_of(answer.status, answer.headers)
    if body is None or body.begin not in (0, offset) or body.end not in (None, facts.n_bytes):
        raise _damaged(answer, f"{shown}: bytes from {offset} on were asked for, others came")
    return Content(facts, offset, skip_bytes(iter(answer), offset - body.begin))


def part_of(answer: HttpAnswer, facts: ObjectFacts, begin: int, end: int, *, shown: str) -> Part:
    """Make the part that was asked for. Takes an answer with the whole object, which stores send of small ones."""
    _check_plain(answer, facts, shown)
    body = body_of(answer.status, answer.headers)
    if body is None or body.begin not in (0, begin) or (body.end is not None and body.end < end):
        raise _damaged(answer, f"{shown}: bytes {begin} to {end} were asked for, others of {facts.n_bytes} came")
    data = answer.read()[begin - body.begin : end - body.begin]
    if len(data) != end - begin:
        raise _damaged(answer, f"{shown}: bytes {begin} to {end} were asked for, {len(data)} came")
    return Part(facts, data)


def skip_bytes(chunks: Iterator[bytes], n_bytes: int) -> Iterator[bytes]:
    """Yield the same bytes without the first `n_bytes`."""
    if not n_bytes:
        yield from chunks
        return
    for chunk in chunks:
        if n_bytes < len(chunk):
            yield from itertools.chain((chunk[n_bytes:],), chunks)
            return
        n_bytes -= len(chunk)


def _check_plain(answer: HttpAnswer, facts: ObjectFacts, shown: str) -> None:
    try:
        check_comes_plain(facts.name, answer.headers.get("Content-Encoding"), shown=shown)
    except StorageError:
        answer.close()
        raise


def _damaged(answer: HttpAnswer, what: str) -> TransferDamagedError:
    answer.close()
    return TransferDamagedError(f"{what}; check who writes to it")


def version_of(headers: Mapping[str, str]) -> str | None:
    """Return what changes when the object does: its ETag, else its date of modification."""
    return headers.get("ETag") or headers.get("Last-Modified") or None


def modified_s(headers: Mapping[str, str]) -> float | None:
    """Return when the object was written, in seconds since 1970 by the server's clock; None if it does not say.

    >>> modified_s({"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"})
    1445412480.0
    """
    try:
        return email.utils.parsedate_to_datetime(headers["Last-Modified"]).timestamp()
    except (KeyError, ValueError, OverflowError, TypeError):
        return None


def facts_of(name: str, n_bytes: int, headers: Mapping[str, str]) -> ObjectFacts:
    """Return the facts of an object of this size, as the headers of an answer state them."""
    return ObjectFacts(name, n_bytes, version_of(headers), modified_s(headers))


def condition_for(version: str | None) -> dict[str, str]:
    """Return headers that ask for this version and no other; none for a weak ETag, which cannot be asked for."""
    if version is None or version.startswith("W/"):
        return {}
    return {"If-Match": version} if version.startswith('"') else {"If-Unmodified-Since": version}


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return how many seconds the server asks to wait; `now_s` is the time of the wall clock.

    `Retry-After` holds the seconds, or a date; else `RateLimit` may say when its window ends (`"api";r=0;t=55`).

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
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - now_s)
    except (ValueError, OverflowError, TypeError):
        return None


def url_of(base: str, name: str, query: str = "") -> str:
    """Return the URL of the object `name` below the URL `base`.

    Every special character of `name` is encoded. In `base`, which is a URL, only what a browser would encode is.

    >>> url_of("https://host/a b%20c", "50%?/x#", "sig=1")
    'https://host/a%20b%20c/50%25%3F/x%23?sig=1'
    """
    begun = urllib.parse.quote(_STRAY_PERCENT.sub("%25", base), safe=_IN_PATHS + "%[]")
    path = f"{begun.rstrip('/')}/{urllib.parse.quote(name, safe=_IN_PATHS)}" if name else begun
    return f"{path}?{query.lstrip('?')}" if query else path
