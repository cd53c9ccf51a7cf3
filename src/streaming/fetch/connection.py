"""One connection to the fetcher, and how long to wait for what is asked over it."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import weakref

from streaming.fetch import protocol
from streaming.fetch.protocol import Answer, Request


class Connection:
    """One socket to the fetcher, of one thread. Closed at the latest when dropped."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._close = weakref.finalize(self, peer.close)
        self.instance = ""  # which life of the fetcher this is

    @property
    def closed(self) -> bool:
        """Whether this process has let go of it."""
        return not self._close.alive

    def close(self) -> None:
        """Drop this process's copy of the socket."""
        self._close()

    def end(self) -> None:
        """End it for every thread and process that has it: who waits for an answer is woken."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
        self._close()

    def exchange(self, request: Request) -> Answer:
        """One request, one answer; whatever interrupts it closes the connection."""
        try:
            protocol.send_request(self._peer, request)
            return protocol.receive_answer(self._peer)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
                raise ConnectionAbortedError(str(error)) from error  # closed by another thread
            raise

    def is_alive(self) -> bool:
        """Whether the other end is still there, by looking without waiting."""
        if self.closed:
            return False
        look = select.poll()
        look.register(self._peer, select.POLLIN)
        return not look.poll(0)  # nothing is due, so what can be read is the end


class Deadline:
    """A limit on waiting, counted from the last change of a token if `renewed`, else from the beginning."""

    def __init__(self, limit_s: float, *, renewed: bool) -> None:
        self.limit_s, self.renewed = limit_s, renewed
        self._began = self._moved = time.monotonic()
        self._token = ""

    def moved(self, token: str) -> None:
        """What is waited for stands at this token."""
        if self.renewed and token != self._token:
            self._token, self._moved = token, time.monotonic()

    def is_over(self) -> bool:
        """Whether to give up."""
        return time.monotonic() - self._moved > self.limit_s

    def waited_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began
