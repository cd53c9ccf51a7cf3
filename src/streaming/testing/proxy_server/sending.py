"""An answer on its way to the client: framed, paced, counted, and spoilt as the fault says."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from streaming.testing.faults import Fault, Limits, LoggedRequest
from streaming.testing.proxy_server.answers import Act, Answer, FileSlice, Piece, acts, cut_piece, edited, error_answer
from streaming.testing.proxy_server.http1 import AnswerHead, Headers, RequestHead
from streaming.testing.proxy_server.pace import Road, piece_bytes
from streaming.testing.proxy_server.surroundings import Surroundings


class HangUp(Exception):  # noqa: N818  no error: what a rule asks for
    """End the connection now."""

    def __init__(self, *, by_reset: bool) -> None:
        super().__init__()
        self.by_reset = by_reset


@dataclass(frozen=True, slots=True)
class Framing:
    """How the client learns where the body ends."""

    lines: tuple[tuple[str, str], ...]
    is_chunked: bool
    keeps_alive: bool

    @classmethod
    def of(cls, head: RequestHead, answer: Answer, fault: Fault, *, keeps_alive: bool) -> Framing:
        """By Content-Length if it is known and not to be left out, else by chunks, else by closing."""
        has_body = answer.body is not None
        length = None if fault.no_length and (has_body or head.method == "HEAD") else answer.stated_bytes
        is_open = has_body and length is None
        is_chunked = is_open and head.version == "HTTP/1.1" and fault.no_length != "close"
        keeps_alive = keeps_alive and (is_chunked or not is_open)
        lines = [
            ("Content-Length", str(length)) if length is not None else None,
            ("Transfer-Encoding", "chunked") if is_chunked else None,
            None if keeps_alive else ("Connection", "close"),
        ]
        return cls(tuple(line for line in lines if line is not None), is_chunked, keeps_alive)


class Sender:
    """The way to one client."""

    def __init__(self, shared: Surroundings, writer: asyncio.StreamWriter) -> None:
        self._shared, self._writer = shared, writer
        self._down, self._up = Road(), Road()

    async def send(
        self, head: RequestHead, answer: Answer, fault: Fault, entry: LoggedRequest, *, keeps_alive: bool
    ) -> bool:
        """The answer, as the fault has it; whether the connection can be used again. Raises HangUp."""
        if fault.stall_after is None:
            await asyncio.sleep(fault.stall_s)
        answer = edited(answer, fault)
        try:
            todo = deque(acts(fault, answer.stated_bytes))
        except ValueError as error:
            answer, todo = error_answer(head.method, head.path, 500, message=str(error)), deque()
        framing = Framing.of(head, answer, fault, keeps_alive=keeps_alive)
        self._shared.tally.answered(entry, answer.status)
        await self.send_head(AnswerHead(answer.status, answer.reason, Headers((*answer.headers.lines, *framing.lines))))
        if answer.body is not None:
            async for part, is_flipped in self._parts(answer.body, todo, fault):
                await _wait_for_turn(len(part), self._shared.down, self._down, self._shared.limits)
                self._shared.tally.sent(entry, len(part))  # before: what a client has is always counted
                await self._send_part(part, is_flipped=is_flipped, is_chunked=framing.is_chunked)
            if framing.is_chunked:
                self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return framing.keeps_alive

    async def send_head(self, head: AnswerHead) -> None:
        """A head alone."""
        self._writer.write(head.dump())
        await self._writer.drain()

    async def pace_upload(self, n_bytes: int) -> None:
        """Wait until so many bytes of a request's body may pass."""
        await _wait_for_turn(n_bytes, self._shared.up, self._up, self._shared.limits)

    async def _parts(
        self, body: AsyncIterator[Piece], todo: deque[tuple[int, Act]], fault: Fault
    ) -> AsyncIterator[tuple[Piece, bool]]:
        """The body in parts that are sent at once, and whether a part is a byte to be flipped; stalls and cuts here."""
        at = 0
        async for whole in body:
            piece = whole
            while len(piece):
                is_flipped = False
                while todo and todo[0][0] == at:
                    is_flipped |= await self._does_flip(todo.popleft()[1], fault)
                limits = self._shared.limits
                n_bytes = min(len(piece), piece_bytes(limits.bytes_per_s, limits.connection_bytes_per_s))
                if is_flipped:
                    n_bytes = 1
                elif todo:
                    n_bytes = min(n_bytes, todo[0][0] - at)
                part, piece = cut_piece(piece, n_bytes)
                yield part, is_flipped
                at += n_bytes

    async def _does_flip(self, act: Act, fault: Fault) -> bool:
        """Stall or cut here, or say that the next byte is to be flipped."""
        if act is Act.STALL:
            await asyncio.sleep(fault.stall_s)
        elif act is Act.CUT:
            raise HangUp(by_reset=fault.cut_by == "reset")
        return act is Act.FLIP

    async def _send_part(self, part: Piece, *, is_flipped: bool, is_chunked: bool) -> None:
        if is_chunked:
            self._writer.write(b"%x\r\n" % len(part))
        if is_flipped:
            self._writer.write(bytes([_first_byte(part) ^ 1]))
        elif isinstance(part, FileSlice):
            loop = asyncio.get_running_loop()
            n_sent = await loop.sendfile(self._writer.transport, part.file, part.begin, part.n_bytes)
            if n_sent < part.n_bytes:
                raise ConnectionAbortedError("a file was cut while it was served")
        else:
            self._writer.write(part)
        if is_chunked:
            self._writer.write(b"\r\n")
        await self._writer.drain()


async def _wait_for_turn(n_bytes: int, together: Road, alone: Road, limits: Limits) -> None:
    now_s = time.monotonic()
    wait_s = max(
        together.wait_s(n_bytes, limits.bytes_per_s, now_s), alone.wait_s(n_bytes, limits.connection_bytes_per_s, now_s)
    )
    await asyncio.sleep(wait_s)  # also for no time: else one connection would take all that was left unspent


def _first_byte(part: Piece) -> int:
    return os.pread(part.file.fileno(), 1, part.begin)[0] if isinstance(part, FileSlice) else part[0]


def refusal(head: RequestHead, limits: Limits) -> Answer:
    """The answer to a request above the limit."""
    answer = error_answer(head.method, head.path, limits.refusal_status)
    if limits.retry_after_s is None:
        return answer
    return replace(answer, headers=answer.headers.having("Retry-After", str(limits.retry_after_s)))
