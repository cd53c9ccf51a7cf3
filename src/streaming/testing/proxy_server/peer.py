"""HTTP/1.1 with one peer, a client or the server behind the proxy: h11 over asyncio's streams."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11

from streaming.testing.proxy_server.objects import FileSlice

BUFFER_BYTES: Final = 1 << 18  # also the longest head
_JOINED_BYTES: Final = 1 << 16

BodyPiece = bytes | bytearray | memoryview | FileSlice


class HttpPeer:
    """Sends and receives h11's events. Small writes are collected until `flush`, or until there are many."""

    def __init__(
        self, role: type[h11.SERVER | h11.CLIENT], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=BUFFER_BYTES)
        self.reader, self.writer = reader, writer
        self._held: list[Any] = []
        self._n_held = 0

    async def receive(self) -> Any:
        """Wait for the next event. Raises OSError, and h11.RemoteProtocolError (also if the peer closes too early)."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(BUFFER_BYTES))
        return event

    def recycle(self) -> bool:
        """Prepare for another request; False if this connection cannot carry one."""
        if self.http.our_state is self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
            return True
        return False

    async def send(self, event: h11.Event) -> None:
        """Frame an event and send it, perhaps later. The data of an `h11.Data` may be any BodyPiece."""
        parts: list[Any] = self.http.send_with_data_passthrough(event) or []
        for part in parts:
            if isinstance(part, FileSlice) and len(part) > _JOINED_BYTES:
                await self.flush()
                await self._send_file(part)
            else:
                self._held.append(part.read() if isinstance(part, FileSlice) else part)
                self._n_held += len(part)
        if self._n_held > _JOINED_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send what was collected, and wait until the peer accepts more."""
        if self._held:
            self.writer.write(self._held[0] if len(self._held) == 1 else b"".join(self._held))
            self._held.clear()
            self._n_held = 0
        await self.writer.drain()

    async def _send_file(self, part: FileSlice) -> None:
        loop = asyncio.get_running_loop()
        if await loop.sendfile(self.writer.transport, part.file, part.begin, part.n_bytes) < part.n_bytes:
            raise ConnectionAbortedError("a file was truncated while it was served")
