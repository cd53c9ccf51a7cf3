"""Helpers for tests: real servers, fakes, faults, and suites that anyone's own parts can run. Imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from streaming.testing.azure import AzureServer
    from streaming.testing.faults import Fault, FaultRule, LoggedRequest, ProxyCounts, ProxyLimits
    from streaming.testing.gcs import GcsServer
    from streaming.testing.memory import MemoryStore
    from streaming.testing.proxy import FaultProxy
    from streaming.testing.s3 import S3Server
    from streaming.testing.sftp import SftpServer
    from streaming.testing.store_contract import StoreContract
    from streaming.testing.web import WebServer

_MODULES: Final = {
    "AzureServer": "azure",
    "Fault": "faults",
    "FaultProxy": "proxy",
    "FaultRule": "faults",
    "GcsServer": "gcs",
    "LoggedRequest": "faults",
    "MemoryStore": "memory",
    "ProxyCounts": "faults",
    "ProxyLimits": "faults",
    "S3Server": "s3",
    "SftpServer": "sftp",
    "StoreContract": "store_contract",
    "WebServer": "web",
}

__all__ = [
    "AzureServer",
    "Fault",
    "FaultProxy",
    "FaultRule",
    "GcsServer",
    "LoggedRequest",
    "MemoryStore",
    "ProxyCounts",
    "ProxyLimits",
    "S3Server",
    "SftpServer",
    "StoreContract",
    "WebServer",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'streaming.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"streaming.testing.{_MODULES[name]}"), name)
