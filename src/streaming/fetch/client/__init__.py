"""The way from any process and thread to the fetcher of its cache."""

from __future__ import annotations

from streaming.fetch.client.client import FetchClient, RangesTicket
from streaming.fetch.client.session import WaitObserver

__all__ = ["FetchClient", "RangesTicket", "WaitObserver"]
