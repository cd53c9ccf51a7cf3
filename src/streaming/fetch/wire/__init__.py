"""What a client and the fetcher have in common: messages, where they meet, and the credentials that they pass on."""

from __future__ import annotations

from streaming.fetch.wire.credentials import CredentialProvider
from streaming.fetch.wire.protocol import (
    INDEXES,
    START,
    Announce,
    Done,
    FileRequest,
    RangeAsk,
    ReadObject,
    ReadRanges,
    Reason,
    Request,
    Span,
    StreamConfig,
    Wait,
)

__all__ = [
    "INDEXES",
    "START",
    "Announce",
    "CredentialProvider",
    "Done",
    "FileRequest",
    "RangeAsk",
    "ReadObject",
    "ReadRanges",
    "Reason",
    "Request",
    "Span",
    "StreamConfig",
    "Wait",
]
