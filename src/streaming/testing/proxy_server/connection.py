"""One client: its requests, one after the other, through limits and rules to an answer."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from streaming.testing.faults import Fault, LoggedRequest
from streaming.testing.proxy_server.answers import Answer, error_answer
from streaming.testing.proxy_server.http1 import BUFFER_BYTES, ProtocolError, RequestHead, read_body, read_request_head
from streaming.testing.proxy_server.sending import HangUp, Sender, refusal
from streaming.testing.proxy_server.sources import Request, Source
from streaming.testing.proxy_server.surroundings import Surroundings

_LINGER_S: Final = 1.0
_SIGNED_RANGE: Final = re.compile(r"SignedHeaders=[^,]*\brange\b", re.IGNORECASE)
_NO_FAULT: Final = Fault()


class Connection:
    """A client's connection; `serve` ends with it."""

    def __init__(
        self, shared: Surroundings, source: Source, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._shared, self._source, self._reader, self._writer = shared, source, reader, writer
        self._sender = Sender(shared, writer)

    async def serve(self) -> None:
        """Answer requests until the client leaves or a rule ends it."""
        number = self._shared.tally.connected()
        by_reset = True  # what breaks off must not look complete
        try:
            while await self._exchange(number):
                pass
            by_reset = False
        except HangUp as end:
            by_reset = end.by_reset
        except (OSError, ProtocolError):
            pass
        finally:
            self._source.close()
            self._shared.tally.disconnected()
            if by_reset:
                self._reset()
            else:
                self._writer.close()

    async def _exchange(self, number: int) -> bool:
        """One request and its answer; whether there may be another."""
        head = await read_request_head(self._reader)
        if head is None:
            return False
        entry = self._shared.tally.begun(number, head)
        upload = _Upload(self._reader, self._sender, head)
        try:
            await asyncio.sleep(self._shared.limits.latency_s)
            keeps_alive = await self._answer(head, upload, entry)
        finally:
            self._shared.tally.ended(entry)
        if not upload.is_read:
            await self._linger()
        return keeps_alive

    async def _answer(self, head: RequestHead, upload: _Upload, entry: LoggedRequest) -> bool:
        rules, limits = self._shared.rules, self._shared.limits
        if not self._shared.gate.lets_pass(limits.requests_per_s, time.monotonic()):
            await upload.skip()
            return await self._send(head, refusal(head, limits), _NO_FAULT, entry, upload)
        entry.rule = rules.meet(head.method, head.path, ranged=head.headers.get("Range") is not None)
        fault = _NO_FAULT if entry.rule is None else rules.rules[entry.rule].fault
        if fault.reset == "before":
            raise HangUp(by_reset=True)
        own = self._own_answer(head, fault)
        if own is not None:
            await upload.skip()
            return await self._send(head, own, fault, entry, upload)
        asked = replace(head, headers=head.headers.without("Range")) if fault.ignore_range else head
        async with self._source.answering(Request(asked, upload.pieces(), self._sender.send_head)) as answer:
            if fault.reset == "after":
                if answer.body is not None:
                    async for _ in answer.body:
                        pass
                raise HangUp(by_reset=True)
            return await self._send(head, answer, fault, entry, upload)

    def _own_answer(self, head: RequestHead, fault: Fault) -> Answer | None:
        """What a fault has us answer without the source."""
        if fault.status is not None:
            return error_answer(head.method, head.path, fault.status, code=fault.code)
        is_signed = self._source.checks_signatures and _SIGNED_RANGE.search(head.headers.get("Authorization") or "")
        if fault.ignore_range and is_signed:
            text = "ignore_range cannot be had here: the client signs its Range, so the store must see it"
            return error_answer(head.method, head.path, 500, message=text)
        return None

    async def _send(
        self, head: RequestHead, answer: Answer, fault: Fault, entry: LoggedRequest, upload: _Upload
    ) -> bool:
        keeps_alive = head.keeps_alive and upload.is_read
        return await self._sender.send(head, answer, fault, entry, keeps_alive=keeps_alive)

    async def _linger(self) -> None:
        """The client still sends a request that has its answer: let it read that before the connection is closed."""
        self._writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while await self._reader.read(BUFFER_BYTES):
                    pass

    def _reset(self) -> None:
        peer = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class _Upload:
    """The body of a request, and whether it has been read to its end."""

    def __init__(self, reader: asyncio.StreamReader, sender: Sender, head: RequestHead) -> None:
        self._reader, self._sender, self._head = reader, sender, head
        self.is_read = head.end == 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """As they may pass."""
        async for piece in read_body(self._reader, self._head.end):
            await self._sender.pace_upload(len(piece))
            yield piece
        self.is_read = True

    async def skip(self) -> None:
        """Read it for nobody, unless the client waits to be asked for it."""
        if not self._head.waits_for_100:
            async for _ in self.pieces():
                pass
