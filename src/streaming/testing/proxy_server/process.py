"""The process: listens for clients, and for its parent on a socket that both inherited. Ends with its parent."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from streaming.testing.faults import Limits, Rule
from streaming.testing.proxy_server.connection import Connection
from streaming.testing.proxy_server.http1 import BUFFER_BYTES
from streaming.testing.proxy_server.origin import Origin
from streaming.testing.proxy_server.rulebook import RuleBook
from streaming.testing.proxy_server.sources import Source
from streaming.testing.proxy_server.surroundings import Surroundings
from streaming.testing.proxy_server.upstream import Upstream

_PDEATHSIG: Final = 1
_BACKLOG: Final = 1024
_COMMAND_BYTES: Final = 1 << 28


class _Client(asyncio.StreamReaderProtocol):
    """Ends the work for a client as soon as it hangs up, also while we are silent on purpose."""

    def __init__(self, shared: Surroundings, new_source: Callable[[], Source]) -> None:
        super().__init__(asyncio.StreamReader(limit=BUFFER_BYTES), self._begin)
        self._shared, self._new_source = shared, new_source
        self._serving: asyncio.Task[None] | None = None

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving = asyncio.create_task(Connection(self._shared, self._new_source(), reader, writer).serve())

    def eof_received(self) -> bool:
        """False: the transport closes itself."""
        super().eof_received()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The work ends where it stands."""
        super().connection_lost(error)
        if self._serving is not None:
            self._serving.cancel()


class _Commands:
    """What the parent may ask, by name."""

    def __init__(self, shared: Surroundings, origin: Origin) -> None:
        self._shared, self._origin = shared, origin

    def rules(self, rules: list[dict[str, Any]], seed: int) -> None:
        """Replace all rules."""
        self._shared.rules = RuleBook([Rule.from_json(rule) for rule in rules], seed)

    def limits(self, limits: dict[str, Any]) -> None:
        """Replace all limits."""
        self._shared.limits = Limits(**limits)

    def objects(self, bucket: str, files: dict[str, str], synthetic: dict[str, int]) -> None:
        """More objects to serve."""
        self._origin.bucket(bucket).add_files(files)
        self._origin.bucket(bucket).add_synthetic(synthetic)

    def counts(self) -> dict[str, Any]:
        """All counts."""
        return self._shared.tally.counts(self._shared.rules.fired).to_json()

    def log(self) -> list[dict[str, Any]]:
        """The latest requests."""
        return [asdict(entry) for entry in self._shared.tally.log]

    def reset_counts(self) -> None:
        """Begin to count anew."""
        self._shared.tally.empty()

    def answer(self, line: bytes) -> bytes:
        """The answer to one line."""
        try:
            command = json.loads(line)
            said = {"result": getattr(self, command.pop("do"))(**command)}
        except Exception as error:  # told to the parent, which knows what it asked
            said = {"error": f"{type(error).__name__}: {error}"}
        return json.dumps(said).encode() + b"\n"


async def serve(control: socket.socket, host: str, upstream: tuple[str, int] | None, folders: dict[str, str]) -> None:
    """Until the parent closes its end."""
    shared, origin = Surroundings(), Origin(folders)

    def new_source() -> Source:
        return origin if upstream is None else Upstream(*upstream)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Client(shared, new_source), host, 0, backlog=_BACKLOG)
    reader, writer = await asyncio.open_connection(sock=control, limit=_COMMAND_BYTES)
    commands = _Commands(shared, origin)
    writer.write(json.dumps({"port": server.sockets[0].getsockname()[1]}).encode() + b"\n")
    async for line in reader:
        writer.write(commands.answer(line))
        await writer.drain()


def main() -> None:
    """Take one argument: what to serve, as JSON."""
    settings = json.loads(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != settings["parent"]:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end is ours
    control = socket.socket(fileno=settings["control"])
    upstream = settings["upstream"]
    asyncio.run(serve(control, settings["host"], tuple(upstream) if upstream else None, settings["folders"]))


if __name__ == "__main__":
    main()
