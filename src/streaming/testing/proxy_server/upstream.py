"""Answers from another server. Each client has its own connection to it, which is kept alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import h11

from streaming.testing.faults import LoggedRequest
from streaming.testing.proxy_server.answer import ProxyAnswer, ProxyRequest, error_answer, without
from streaming.testing.proxy_server.peer import BUFFER_BYTES, HttpPeer

# All other headers, above all Host, arrive as they were sent, so that signatures hold.
_HOP_BY_HOP: Final = (b"Connection", b"Keep-Alive", b"Proxy-Connection", b"Upgrade")
_FRAMING: Final = (b"Content-Length", b"Transfer-Encoding", b"Trailer")


class Upstream:
    """One client's connection to the server behind the proxy, opened when it is first needed."""

    checks_signatures: Final = True  # possibly

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._server: HttpPeer | None = None

    async def answer(self, request: ProxyRequest) -> ProxyAnswer:
        """The server's answer, or a 502 if the server cannot be reached or closes the connection first."""
        try:
            server, head = await self._exchange(request)
        except (OSError, h11.ProtocolError) as error:
            self.close()
            why = f"no answer from {self._address[0]}:{self._address[1]}: {error}"
            return error_answer(request.entry, 502, code="UpstreamFailed", message=why)
        length = dict(head.headers).get(b"content-length")
        headers = without(head.headers.raw_items(), *_HOP_BY_HOP, *_FRAMING)
        n_bytes = None if length is None else int(length)
        return ProxyAnswer(head.status_code, headers, n_bytes, _relayed(server, request.client), bytes(head.reason))

    def close(self) -> None:
        """Close the connection, as the client has left."""
        if self._server is not None:
            self._server.writer.transport.abort()
            self._server = None

    async def _exchange(self, request: ProxyRequest) -> tuple[HttpPeer, h11.Response]:
        """Forward a request; return the head of its answer.

        A request without a body is sent once more on a new connection if an idle one fails: the server may close it at
        the very moment when it is used again.
        """
        if self._server is not None and self._server.recycle():
            try:
                return self._server, await _forward(request, self._server)
            except (OSError, h11.RemoteProtocolError):
                if _has_body(request.entry):
                    raise
        self.close()
        self._server = HttpPeer(h11.CLIENT, *await asyncio.open_connection(*self._address, limit=BUFFER_BYTES))
        return self._server, await _forward(request, self._server)


async def _forward(request: ProxyRequest, server: HttpPeer) -> h11.Response:
    head, client = request.head, request.client
    headers = without(head.headers.raw_items(), *_HOP_BY_HOP)
    with contextlib.suppress(OSError):  # a server that closes the connection early may have answered before
        await server.send(h11.Request(method=head.method, target=head.target, headers=headers))
        if not client.http.they_are_waiting_for_100_continue:
            await _send_body(request, server)
        await server.flush()
    while isinstance(event := await server.receive(), h11.InformationalResponse):
        is_awaited = client.http.they_are_waiting_for_100_continue
        await client.send(event)
        await client.flush()
        if is_awaited and event.status_code == 100:
            with contextlib.suppress(OSError):
                await _send_body(request, server)
    assert isinstance(event, h11.Response)
    return event


async def _relayed(server: HttpPeer, client: HttpPeer) -> AsyncIterator[bytes]:
    """The body of an answer. Each piece is passed on before the next is awaited."""
    await client.flush()
    while isinstance(event := await server.receive(), h11.Data):
        yield event.data
        await client.flush()


async def _send_body(request: ProxyRequest, server: HttpPeer) -> None:
    while piece := await request.receive_upload():
        await server.send(h11.Data(data=piece))
        await server.flush()
    await server.send(h11.EndOfMessage())
    await server.flush()


def _has_body(request: LoggedRequest) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
