"""Requests and answers between the two connections, errors in S3's form, and what a fault changes in an answer."""

from __future__ import annotations

import enum
import http
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

import h11

from streaming.testing.faults import BodyPosition, Fault, LoggedRequest
from streaming.testing.proxy_server.peer import BodyPiece, HttpPeer

_CODES: Final = {
    400: "InvalidRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}
_PHRASES: Final = {status.value: status.phrase.encode() for status in http.HTTPStatus}

HeaderLines = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request, with what its answer may need."""

    head: h11.Request
    entry: LoggedRequest
    """The head, parsed."""
    client: HttpPeer
    """Receives interim answers, such as 100 Continue."""
    receive_upload: Callable[[], Awaitable[bytes]]
    """The next piece of the body; empty at its end."""


async def _pieces(*pieces: BodyPiece) -> AsyncIterator[BodyPiece]:
    for piece in pieces:
        yield piece


@dataclass(frozen=True, slots=True)
class ProxyAnswer:
    """An answer. Its headers say nothing about framing or the connection; these are added when it is sent."""

    status: int
    headers: HeaderLines
    n_bytes: int | None
    """The Content-Length to state, even where no body follows. None: unknown."""
    body: AsyncIterator[BodyPiece] = field(default_factory=_pieces)
    reason: bytes | None = None
    """None: the usual phrase of the status."""

    @classmethod
    def of(cls, request: LoggedRequest, status: int, headers: HeaderLines, content: BodyPiece) -> ProxyAnswer:
        """An answer with this content, which is left out for HEAD."""
        return cls(status, headers, len(content), _pieces(*() if request.method == "HEAD" else (content,)))

    def head(self, fault: Fault, *, is_last: bool) -> h11.Response:
        """The head as the fault changes it. `is_last`: announce that the connection closes after this answer."""
        headers = self.headers
        if fault.headers or fault.etag:
            new = {name.encode(): value.encode() for name, value in fault.headers.items()}
            if fault.etag == "change":
                etag = next((value for name, value in headers if name.lower() == b"etag"), b"")
                new = {b"ETag": b'"%b-changed"' % etag.strip(b'"'), **new}
            headers = [*without(headers, *new, *[b"ETag"] * bool(fault.etag)), *new.items()]
        if self.n_bytes is not None and fault.no_length is None:
            headers = [*headers, (b"Content-Length", b"%d" % self.n_bytes)]
        if is_last:
            headers = [*headers, (b"Connection", b"close")]
        reason = _PHRASES.get(self.status, b"") if self.reason is None else self.reason
        return h11.Response(status_code=self.status, headers=headers, reason=reason)


def without(headers: HeaderLines, *names: bytes) -> HeaderLines:
    """All headers but these; names in any case."""
    dropped = {name.lower() for name in names}
    return [each for each in headers if each[0].lower() not in dropped]


def error_answer(request: LoggedRequest, status: int, *, code: str | None = None, message: str = "") -> ProxyAnswer:
    """An error in S3's form."""
    code = code or _CODES.get(status, "InternalError" if status >= 500 else "InvalidRequest")
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{escape(code)}</Code><Message>{escape(message or code)}</Message>"
        f"<Resource>{escape(request.path)}</Resource><RequestId>0</RequestId></Error>"
    )
    return ProxyAnswer.of(request, status, [(b"Content-Type", b"application/xml")], text.encode())


class BodyAct(enum.Enum):
    """What happens at a position of a body; at the same position in this order."""

    STALL = enum.auto()
    FLIP = enum.auto()
    CUT = enum.auto()


def body_acts(fault: Fault, n_bytes: int | None) -> list[tuple[int, BodyAct]]:
    """The acts of a fault in a body of this length, by position.

    Raises ValueError if a position is a fraction of an unknown length.
    """
    positions = {BodyAct.STALL: fault.stall_after, BodyAct.FLIP: fault.flip_at, BodyAct.CUT: fault.cut_after}
    found = [(_byte_of(at, n_bytes), act) for act, at in positions.items() if at is not None]
    found = [each for each in found if n_bytes is None or each[0] < n_bytes]
    return sorted(found, key=lambda each: (each[0], each[1].value))


def _byte_of(at: BodyPosition, n_bytes: int | None) -> int:
    if isinstance(at, int):
        return at
    if n_bytes is None:
        raise ValueError("a fault lies at a share of the body, and this body's length is not known; give it in bytes")
    return int(at * n_bytes)
