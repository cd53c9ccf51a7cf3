"""A client's connection: each request passes limits and rules, and gets an answer that a fault may change."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import time
from collections import deque
from dataclasses import replace
from typing import Any, Final

import h11

from streaming.testing.faults import Fault, LoggedRequest
from streaming.testing.proxy_server.answer import (
    BodyAct,
    ProxyAnswer,
    ProxyRequest,
    body_acts,
    error_answer,
    without,
)
from streaming.testing.proxy_server.objects import FileSlice
from streaming.testing.proxy_server.origin import Origin
from streaming.testing.proxy_server.pace import ByteRateLimiter, piece_bytes
from streaming.testing.proxy_server.peer import BodyPiece, HttpPeer
from streaming.testing.proxy_server.state import ProxyState
from streaming.testing.proxy_server.upstream import Upstream

_SIGNED_RANGE: Final = re.compile(r"SignedHeaders=[^,]*\brange\b", re.IGNORECASE)
_NO_FAULT: Final = Fault()


class HangUp(Exception):  # noqa: N818  no error: what a rule asks for
    """End the connection now."""

    def __init__(self, *, by_reset: bool) -> None:
        super().__init__()
        self.by_reset = by_reset


class ProxyConnection:
    """A client's connection. `serve` returns when it has ended."""

    def __init__(
        self, state: ProxyState, source: Origin | Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._state, self._source = state, source
        self._client = HttpPeer(h11.SERVER, reader, writer)
        self._downlink, self._uplink = ByteRateLimiter(), ByteRateLimiter()

    async def serve(self) -> None:
        """Answer requests until the client leaves or a rule ends the connection."""
        number = self._state.connected()
        by_reset = True  # an answer that stops early must not look complete
        try:
            while await self._exchange(number):
                pass
            by_reset = False
        except HangUp as end:
            by_reset = end.by_reset
        except (OSError, h11.ProtocolError):
            pass
        finally:
            self._source.close()
            self._state.disconnected()
            if by_reset:
                peer = self._client.writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._client.writer.transport.abort()
            else:
                self._client.writer.close()

    async def _exchange(self, number: int) -> bool:
        """Serve one request; return whether there may be another."""
        head = await self._client.receive()
        if not isinstance(head, h11.Request):
            return False
        entry = self._state.begun(number, head)
        try:
            if self._state.limits.latency_s:
                await asyncio.sleep(self._state.limits.latency_s)
            await self._serve_request(head, entry)
        finally:
            self._state.ended(entry)
        return self._client.recycle()

    async def _serve_request(self, head: h11.Request, entry: LoggedRequest) -> None:
        limits, rules = self._state.limits, self._state.rules
        if not self._state.request_rate.admits(limits.requests_per_s, time.monotonic()):
            headers = {} if limits.retry_after_s is None else {"Retry-After": str(limits.retry_after_s)}
            await self._deliver(entry, error_answer(entry, limits.refusal_status), Fault(headers=headers))
            return
        matched = rules.match(entry.method, entry.path, ranged="range" in entry.headers)
        entry.rule, fault = matched or (None, _NO_FAULT)
        if fault.reset == "before":
            raise HangUp(by_reset=True)
        if fault.stall_after is None:
            await self._stall(fault.stall_s)
        answer = await self._answer(ProxyRequest(head, entry, self._client, self._receive_upload), fault)
        if fault.reset == "after":
            async for _ in answer.body:
                pass
            raise HangUp(by_reset=True)
        await self._deliver(entry, answer, fault)

    async def _answer(self, request: ProxyRequest, fault: Fault) -> ProxyAnswer:
        entry = request.entry
        if fault.status is not None:
            return error_answer(entry, fault.status, code=fault.code)
        if fault.ignore_range:
            if self._source.checks_signatures and _SIGNED_RANGE.search(entry.headers.get("authorization", "")):
                text = "ignore_range cannot be had here: the client signs its Range, so the store must see it"
                return error_answer(entry, 500, message=text)
            headers = without(request.head.headers.raw_items(), b"Range")
            head = h11.Request(method=request.head.method, target=request.head.target, headers=headers)
            request = replace(request, head=head, entry=replace(entry, span=None))
        return await self._source.answer(request)

    async def _deliver(self, entry: LoggedRequest, answer: ProxyAnswer, fault: Fault) -> None:
        """Read the rest of the upload, then send the answer as the fault changes it."""
        http = self._client.http
        while not http.they_are_waiting_for_100_continue and await self._receive_upload():
            pass
        try:
            acts = deque(body_acts(fault, answer.n_bytes))
        except ValueError as error:
            answer, acts = error_answer(entry, 500, message=str(error)), deque()
        if fault.no_length == "close":
            http.their_http_version = b"1.0"  # to which h11 ends bodies of unknown length by closing
        self._state.answered(entry, answer.status)
        await self._client.send(answer.head(fault, is_last=http.their_state is not h11.DONE))
        n_sent = 0
        async for piece in answer.body:
            n_sent += await self._send_piece(piece, n_sent, acts, fault, entry)
        await self._client.send(h11.EndOfMessage())
        await self._client.flush()

    async def _send_piece(
        self, piece: BodyPiece, at: int, acts: deque[tuple[int, BodyAct]], fault: Fault, entry: LoggedRequest
    ) -> int:
        """Send a piece that begins at position `at`, in parts that end where something happens; return its length."""
        n_bytes, n_sent = len(piece), 0
        while n_sent < n_bytes:
            is_flipped = False
            while acts and acts[0][0] == at + n_sent:
                is_flipped |= await self._act(acts.popleft()[1], fault)
            limits = self._state.limits
            end = min(n_bytes, n_sent + piece_bytes(limits.bytes_per_s, limits.connection_bytes_per_s))
            if is_flipped:
                end = n_sent + 1
            elif acts:
                end = min(end, acts[0][0] - at)
            part: Any = piece[n_sent:end]  # h11 only needs its length
            if is_flipped:
                part = bytes([(part.read() if isinstance(part, FileSlice) else part)[0] ^ 1])
            await self._pace(end - n_sent, self._state.downlink, self._downlink)
            self._state.sent(entry, end - n_sent)  # first: whatever a client has received is counted
            await self._client.send(h11.Data(data=part))
            n_sent = end
        return n_bytes

    async def _act(self, act: BodyAct, fault: Fault) -> bool:
        """Stall or cut here; return whether the next byte must be flipped."""
        if act is BodyAct.STALL:
            await self._stall(fault.stall_s)
        elif act is BodyAct.CUT:
            await self._client.flush()
            raise HangUp(by_reset=fault.cut_by == "reset")
        return act is BodyAct.FLIP

    async def _stall(self, seconds: float) -> None:
        """Send nothing for this long, or until the rules are replaced."""
        if seconds:
            await self._client.flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._state.rules.replaced.wait(), seconds)

    async def _receive_upload(self) -> bytes:
        """The next piece of the request's body; empty at its end."""
        is_over = self._client.http.their_state is not h11.SEND_BODY
        if is_over or not isinstance(event := await self._client.receive(), h11.Data):
            return b""
        await self._pace(len(event.data), self._state.uplink, self._uplink)
        return event.data

    async def _pace(self, n_bytes: int, together: ByteRateLimiter, alone: ByteRateLimiter) -> None:
        limits, now_s = self._state.limits, time.monotonic()
        if limits.bytes_per_s is None and limits.connection_bytes_per_s is None:
            return
        wait_s = max(
            together.wait_s(n_bytes, limits.bytes_per_s, now_s),
            alone.wait_s(n_bytes, limits.connection_bytes_per_s, now_s),
        )
        await self._client.flush()
        await asyncio.sleep(wait_s)  # also for 0 s: else one connection would take the whole burst
