"""The server process: accepts clients, and obeys its parent over a pipe until the parent closes it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from io import FileIO
from multiprocessing.connection import Connection
from typing import Any, Final

from streaming.testing.proxy_server.connection import ProxyConnection
from streaming.testing.proxy_server.origin import Origin
from streaming.testing.proxy_server.peer import BUFFER_BYTES
from streaming.testing.proxy_server.state import ProxyState
from streaming.testing.proxy_server.upstream import Upstream

_PDEATHSIG: Final = 1
_BACKLOG: Final = 1024


class _ClientProtocol(asyncio.StreamReaderProtocol):
    """Cancels the work for a client as soon as it hangs up, even during a stall."""

    def __init__(self, state: ProxyState, source: Origin | Upstream) -> None:
        super().__init__(asyncio.StreamReader(limit=BUFFER_BYTES), self._begin)
        self._state, self._source = state, source
        self._serving: asyncio.Task[None] | None = None

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving = asyncio.create_task(ProxyConnection(self._state, self._source, reader, writer).serve())

    def eof_received(self) -> bool:
        """Have the transport close itself."""
        super().eof_received()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the work."""
        super().connection_lost(error)
        if self._serving is not None:
            self._serving.cancel()


async def serve(
    control: Connection, host: str, upstream: tuple[str, int] | None, folders: dict[str, str], contents: int
) -> None:
    """Serve clients until the parent closes its end of `control`, over which it calls methods of state and origin."""
    state, origin = ProxyState(), Origin(folders, FileIO(contents))
    targets: dict[str, ProxyState | Origin] = {"state": state, "origin": origin}
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()

    def new_client() -> _ClientProtocol:
        return _ClientProtocol(state, origin if upstream is None else Upstream(*upstream))

    def obey() -> None:
        try:
            target, method, arguments = control.recv()
        except EOFError:
            is_over.set()
            return
        try:
            control.send(getattr(targets[target], method)(**arguments))
        except Exception as error:  # the parent raises it
            control.send(error)

    server = await loop.create_server(new_client, host, 0, backlog=_BACKLOG)
    control.send(server.sockets[0].getsockname()[1])
    loop.add_reader(control.fileno(), obey)
    await is_over.wait()


def main() -> None:
    """Run with two arguments, a pipe's descriptor and the parent's process id; the settings come over the pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    control = Connection(int(sys.argv[1]))
    settings: dict[str, Any] = control.recv()
    asyncio.run(serve(control, **settings))


if __name__ == "__main__":
    main()
