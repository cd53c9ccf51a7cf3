"""An answer: its head, and a body of pieces that are bytes or places in files; and what a fault makes of it."""

from __future__ import annotations

import enum
import http
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import BinaryIO, Final
from xml.sax.saxutils import escape

from streaming.testing.faults import Fault, Spot
from streaming.testing.proxy_server.http1 import Headers

_PHRASES: Final = {status.value: status.phrase for status in http.HTTPStatus}
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


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes that lie in an open file."""

    file: BinaryIO
    begin: int
    n_bytes: int

    def __len__(self) -> int:
        return self.n_bytes

    def cut(self, n_bytes: int) -> tuple[FileSlice, FileSlice]:
        """The first bytes and the rest."""
        rest = FileSlice(self.file, self.begin + n_bytes, self.n_bytes - n_bytes)
        return FileSlice(self.file, self.begin, n_bytes), rest


Piece = bytes | memoryview | FileSlice


def cut_piece(piece: Piece, n_bytes: int) -> tuple[Piece, Piece]:
    """The first bytes of a piece and the rest, without copying."""
    if isinstance(piece, FileSlice):
        return piece.cut(n_bytes)
    view = memoryview(piece)
    return view[:n_bytes], view[n_bytes:]


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes to the client. The headers say nothing of framing and connection: who sends it decides these."""

    status: int
    reason: str
    headers: Headers
    stated_bytes: int | None
    """What Content-Length says, also where no body follows."""
    body: AsyncIterator[Piece] | None


async def in_pieces(pieces: Iterable[Piece]) -> AsyncIterator[Piece]:
    """A body whose pieces are at hand."""
    for piece in pieces:
        yield piece


def whole_answer(status: int, headers: Iterable[tuple[str, str]], content: bytes, *, method: str) -> Answer:
    """An answer with its content."""
    body = None if method == "HEAD" or status in (204, 304) else in_pieces([content] if content else [])
    stated = None if status in (204, 304) else len(content)
    return Answer(status, _PHRASES.get(status, "Unknown"), Headers(tuple(headers)), stated, body)


def error_answer(method: str, path: str, status: int, *, code: str | None = None, message: str = "") -> Answer:
    """An error in the form of S3."""
    code = code or _CODES.get(status, "InternalError" if status >= 500 else "InvalidRequest")
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{escape(code)}</Code><Message>{escape(message or code)}</Message>"
        f"<Resource>{escape(path)}</Resource><RequestId>0</RequestId></Error>"
    )
    return whole_answer(status, [("Content-Type", "application/xml")], text.encode(), method=method)


def edited(answer: Answer, fault: Fault) -> Answer:
    """The answer with the headers that the fault gives it."""
    headers = answer.headers
    etag = headers.get("ETag")
    if fault.etag is not None:
        headers = headers.without("ETag")
    if fault.etag == "change":
        headers = headers.having("ETag", f'"{(etag or "").strip(chr(34))}-changed"')
    for name, value in fault.headers.items():
        headers = headers.having(name, value)
    return replace(answer, headers=headers)


class Act(enum.Enum):
    """What is done at a place in a body."""

    STALL = enum.auto()
    FLIP = enum.auto()
    CUT = enum.auto()


def acts(fault: Fault, n_bytes: int | None) -> list[tuple[int, Act]]:
    """What a fault does in a body of this length, by place; at one place a stall comes first, and a cut last.

    Raises ValueError if a place is a share of a length that nobody knows.
    """
    spots = {Act.STALL: fault.stall_after, Act.FLIP: fault.flip_at, Act.CUT: fault.cut_after}
    found = [(_place(spot, n_bytes), act) for act, spot in spots.items() if spot is not None]
    if n_bytes is not None:
        found = [(place, act) for place, act in found if place < n_bytes]
    return sorted(found, key=lambda each: (each[0], each[1].value))


def _place(spot: Spot, n_bytes: int | None) -> int:
    if isinstance(spot, int):
        return spot
    if n_bytes is None:
        raise ValueError("a fault lies at a share of the body, and this body's length is not known; give it in bytes")
    return int(spot * n_bytes)
