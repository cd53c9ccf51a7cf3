"""Answers from another server: each client has its own connection to it, which is kept alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from streaming.testing.proxy_server.answers import Answer, Piece, error_answer
from streaming.testing.proxy_server.http1 import (
    BUFFER_BYTES,
    AnswerHead,
    ProtocolError,
    RequestHead,
    Until,
    read_answer_head,
    read_body,
)
from streaming.testing.proxy_server.sources import Request

# All else, Host above all, arrives as it was sent, so that signatures hold.
_OF_THIS_HOP: Final = ("Connection", "Keep-Alive", "Proxy-Connection", "Upgrade")
_FRAMING: Final = ("Content-Length", "Transfer-Encoding", "Trailer")

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request on its way, and the head of its answer."""

    streams: _Streams
    sending: asyncio.Task[None]
    answer: AnswerHead
    end: int | Until | None  # of the answer's body; None: it has none

    @property
    def leaves_connection(self) -> bool:
        """Whether another request can follow, once the body has been read."""
        is_kept = self.answer.version == "HTTP/1.1" and not self.answer.headers.names_token("Connection", "close")
        return is_kept and self.sending.done() and self.end is not Until.CLOSE


class Upstream:
    """The connection of one client to the server behind; made when first needed."""

    checks_signatures = True  # it may

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: _Streams | None = None

    @contextlib.asynccontextmanager
    async def answering(self, request: Request) -> AsyncIterator[Answer]:
        """See Source. A server that cannot be reached, or breaks off before it answers, is a 502."""
        head, exchange = request.head, await self._exchange_or_error(request)
        if not isinstance(exchange, _Exchange):
            why = f"no answer from {self._address[0]}:{self._address[1]}: {exchange}"
            yield error_answer(head.method, head.path, 502, code="UpstreamFailed", message=why)
            return
        body = None if exchange.end is None else read_body(exchange.streams[0], exchange.end)
        try:
            yield _as_answer(exchange, body)
            if exchange.leaves_connection and (body is None or await anext(body, None) is None):
                self._idle = exchange.streams
        finally:
            exchange.sending.cancel()
            if self._idle is None:
                exchange.streams[1].transport.abort()

    def close(self) -> None:
        """See Source."""
        if self._idle is not None:
            self._idle[1].transport.abort()

    async def _exchange_or_error(self, request: Request) -> _Exchange | Exception:
        try:
            return await self._exchange_again_if_stale(request)
        except (OSError, ProtocolError) as error:
            return error

    async def _exchange_again_if_stale(self, request: Request) -> _Exchange:
        """A server may close an idle connection just when we use it; then it has not seen the request."""
        streams, self._idle = self._idle, None
        if streams is not None:
            try:
                return await self._exchange(request, streams)
            except OSError:
                if request.head.end != 0:
                    raise
        return await self._exchange(request, await asyncio.open_connection(*self._address, limit=BUFFER_BYTES))

    async def _exchange(self, request: Request, streams: _Streams) -> _Exchange:
        reader, writer = streams
        head = request.head
        sending: asyncio.Task[None] | None = None
        try:
            writer.write(RequestHead(head.method, head.target, "HTTP/1.1", head.headers.without(*_OF_THIS_HOP)).dump())
            sending = asyncio.create_task(_send_body(request, writer))
            while (answer := await read_answer_head(reader)).status < 200:
                if answer.status == 101:
                    raise ProtocolError("it wants another protocol")
                await request.interim(answer)
            return _Exchange(streams, sending, answer, answer.end if answer.has_body(head.method) else None)
        except BaseException:
            if sending is not None:
                sending.cancel()
            writer.transport.abort()
            raise


async def _send_body(request: Request, writer: asyncio.StreamWriter) -> None:
    """The request's body, framed as the client framed it. A server that breaks off has its say in its answer."""
    chunked = request.head.end is Until.LAST_CHUNK
    try:
        async for piece in request.body:
            writer.writelines((b"%x\r\n" % len(piece), piece, b"\r\n") if chunked else (piece,))
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
    except (OSError, ProtocolError):
        writer.transport.abort()


def _as_answer(exchange: _Exchange, body: AsyncIterator[Piece] | None) -> Answer:
    head = exchange.answer
    length = head.headers.get("Content-Length")
    is_stated = length is not None and length.isdecimal()
    return Answer(
        head.status,
        head.reason,
        head.headers.without(*_OF_THIS_HOP, *_FRAMING),
        int(length or 0) if is_stated else None,
        body,
    )
