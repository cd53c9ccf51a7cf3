"""What has happened: counters, and a log of the latest requests."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from streaming.testing.faults import Counts, LoggedRequest
from streaming.testing.proxy_server.http1 import RequestHead

LOG_REQUESTS: Final = 100_000


class Tally:
    """Counts since the start, or since it was emptied."""

    def __init__(self) -> None:
        self._open = 0
        self._n_ever = 0
        self.empty()

    def empty(self) -> None:
        """Forget all but the connections that are open."""
        self.log: deque[LoggedRequest] = deque(maxlen=LOG_REQUESTS)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._by_path: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._peak, self._n_connections = self._open, 0

    def connected(self) -> int:
        """A client has come; its number."""
        self._open += 1
        self._n_connections += 1
        self._peak = max(self._peak, self._open)
        self._n_ever += 1
        return self._n_ever

    def disconnected(self) -> None:
        """A client has gone."""
        self._open -= 1

    def begun(self, connection: int, head: RequestHead) -> LoggedRequest:
        """A request has come; its entry, to be handed back to the methods below."""
        entry = LoggedRequest(connection, head.method, head.path, head.query, head.span, time.monotonic())
        self.log.append(entry)
        self._by_path[entry.path] += 1
        return entry

    def answered(self, entry: LoggedRequest, status: int) -> None:
        """The head of the answer goes out."""
        self._requests[entry.method, status] += 1
        entry.status = status

    def sent(self, entry: LoggedRequest, n_bytes: int) -> None:
        """Bytes of its body went out."""
        self._bytes[entry.path] += n_bytes
        entry.n_bytes += n_bytes

    def ended(self, entry: LoggedRequest) -> None:
        """It is over, well or not."""
        if not entry.status:
            self._requests[entry.method, 0] += 1
        entry.ended_s = time.monotonic()

    def counts(self, fired: Sequence[int]) -> Counts:
        """All of it but the log."""
        return Counts(
            dict(self._requests),
            dict(self._by_path),
            dict(self._bytes),
            tuple(fired),
            self._n_connections,
            self._open,
            self._peak,
        )
