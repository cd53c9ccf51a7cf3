"""HTTP/1.1 as far as a proxy needs it: heads, ranges, and where bodies end."""

from __future__ import annotations

import asyncio
import enum
import re
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

BUFFER_BYTES: Final = 1 << 18  # also the longest head
_RANGE: Final = re.compile(r"\s*bytes=(\d*)-(\d*)\s*", re.ASCII)


class ProtocolError(Exception):
    """The other side does not speak HTTP/1.1 as we understand it."""


class Until(enum.Enum):
    """What ends a body whose length nobody states."""

    LAST_CHUNK = enum.auto()
    CLOSE = enum.auto()


@dataclass(frozen=True, slots=True)
class Headers:
    """Header lines in their order; names in any case."""

    lines: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str | None:
        """The first value."""
        return next((value for key, value in self.lines if key.lower() == name.lower()), None)

    def without(self, *names: str) -> Headers:
        """All but these."""
        left_out = {name.lower() for name in names}
        return Headers(tuple(line for line in self.lines if line[0].lower() not in left_out))

    def having(self, name: str, value: str) -> Headers:
        """With this one, instead of those of the same name."""
        return Headers((*self.without(name).lines, (name, value)))

    def names_token(self, name: str, token: str) -> bool:
        """Whether a header that is a list has this word in it."""
        return token in (word.strip().lower() for word in (self.get(name) or "").split(","))


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The first lines of a request."""

    method: str
    target: str
    version: str
    headers: Headers

    @property
    def path(self) -> str:
        """Decoded, without the query."""
        return urllib.parse.unquote(self.target.partition("?")[0])

    @property
    def query(self) -> str:
        """As it was sent."""
        return self.target.partition("?")[2]

    @property
    def keeps_alive(self) -> bool:
        """Whether the client would send another request on this connection."""
        return self.version == "HTTP/1.1" and not self.headers.names_token("Connection", "close")

    @property
    def waits_for_100(self) -> bool:
        """Whether the client holds its body back until it is asked for it."""
        return self.headers.names_token("Expect", "100-continue")

    @property
    def span(self) -> tuple[int, int | None] | None:
        """The bytes asked for, see LoggedRequest."""
        found = _RANGE.fullmatch(self.headers.get("Range") or "")
        if found is None or found[0].strip() in ("bytes=-", "bytes=-0"):
            return None
        first, last = found[1], found[2]
        if not first:
            return -int(last), None
        return int(first), int(last) + 1 if last else None

    @property
    def end(self) -> int | Until:
        """Where the body ends."""
        return _stated_end(self.headers) or 0

    def dump(self) -> bytes:
        """As it goes over the wire, in our version."""
        return _dumped(f"{self.method} {self.target} HTTP/1.1", self.headers)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The first lines of an answer."""

    status: int
    reason: str
    headers: Headers
    version: str = "HTTP/1.1"

    def has_body(self, method: str) -> bool:
        """Whether anything follows the head."""
        return method != "HEAD" and self.status >= 200 and self.status not in (204, 304)

    @property
    def end(self) -> int | Until:
        """Where the body ends, if there is one."""
        end = _stated_end(self.headers)
        return Until.CLOSE if end is None else end

    def dump(self) -> bytes:
        """As it goes over the wire, in our version."""
        return _dumped(f"HTTP/1.1 {self.status} {self.reason}", self.headers)


async def read_request_head(reader: asyncio.StreamReader) -> RequestHead | None:
    """The next request; None if the client has sent its last. Raises ProtocolError, ConnectionError."""
    found = await _read_head(reader)
    if found is None:
        return None
    words = found[0].split(" ")
    if len(words) != 3 or not words[1].startswith("/") or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise ProtocolError(f"not a request for a path: {found[0][:100]!r}")
    return RequestHead(words[0], words[1], words[2], found[1])


async def read_answer_head(reader: asyncio.StreamReader) -> AnswerHead:
    """The next answer. Raises ProtocolError, ConnectionError."""
    found = await _read_head(reader)
    if found is None:
        raise ConnectionResetError("the connection was closed before an answer")
    version, _, rest = found[0].partition(" ")
    status, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not re.fullmatch(r"[1-5]\d\d", status, re.ASCII):
        raise ProtocolError(f"not an answer: {found[0][:100]!r}")
    return AnswerHead(int(status), reason, found[1], version)


async def read_body(reader: asyncio.StreamReader, end: int | Until) -> AsyncIterator[bytes]:
    """The pieces of a body, as they come. Raises ProtocolError, and ConnectionResetError for one that is cut."""
    if end is Until.CLOSE:
        while piece := await reader.read(BUFFER_BYTES):
            yield piece
    elif end is Until.LAST_CHUNK:
        while n_bytes := await _chunk_bytes(reader):
            async for piece in read_body(reader, n_bytes):
                yield piece
            await reader.readline()
        while (await reader.readline()).strip():  # trailers, which a proxy may leave out
            pass
    else:
        left = end
        while left:
            piece = await reader.read(min(left, BUFFER_BYTES))
            if not piece:
                raise ConnectionResetError(f"the connection was closed {left} bytes before the end of a body")
            left -= len(piece)
            yield piece


async def _chunk_bytes(reader: asyncio.StreamReader) -> int:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the connection was closed between two chunks of a body")
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise ProtocolError(f"not the length of a chunk: {line[:100]!r}") from None


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, Headers] | None:
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise ConnectionResetError("the connection was closed within a head") from None
        return None
    except asyncio.LimitOverrunError:
        raise ProtocolError(f"a head of more than {BUFFER_BYTES} bytes") from None
    first, *rest = text.strip("\r\n").split("\r\n")
    pairs = [line.partition(":") for line in rest]
    if not all(colon for _, colon, _ in pairs):
        raise ProtocolError("a header without a colon")
    return first, Headers(tuple((name.strip(), value.strip()) for name, _, value in pairs))


def _stated_end(headers: Headers) -> int | Until | None:
    if headers.names_token("Transfer-Encoding", "chunked"):
        return Until.LAST_CHUNK
    length = headers.get("Content-Length")
    if length is None:
        return None
    if not re.fullmatch(r"\d+", length, re.ASCII):
        raise ProtocolError(f"not a length: {length[:100]!r}")
    return int(length)


def _dumped(first: str, headers: Headers) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.lines), "", ""]
    return "\r\n".join(lines).encode("latin-1")
