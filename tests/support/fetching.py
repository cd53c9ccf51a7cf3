"""Short ways to ask a fetcher."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from streaming.fetch.client import FetchClient
from streaming.fetch.wire import FileRequest, RangeAsk, Reason, Span, StreamConfig
from streaming.storage.url import parse_remote


def stream_config(remote: str, local: str, *settings: Any, **named: Any) -> StreamConfig:
    """A stream at a URL or folder given as text."""
    return StreamConfig(parse_remote(remote), local, *settings, **named)


def fetch_all(client: FetchClient, files: Sequence[FileRequest], *, timeout_s: float | None = None) -> list[str]:
    """The paths of all these files, fetched several at once."""
    reader = f"all-{os.urandom(4).hex()}"
    client.announce(reader, files)
    try:
        return [client.wait(file, timeout_s=timeout_s) for file in files]
    finally:
        client.announce(reader, ())


def read_ranges(
    client: FetchClient, spans: Sequence[Span], reason: Reason, *, due_s: float = 0.0, **named: Any
) -> list[memoryview | None]:
    """The bytes of all these spans; None where one was not granted. Late samples are those of a first batch."""
    if reason is Reason.AHEAD:
        named = {"n_samples": len(spans), "stop": len(spans), "n_free": len(spans), **named}
    return client.end_ranges(client.begin_ranges(spans, RangeAsk(reason, due_s, **named)))
