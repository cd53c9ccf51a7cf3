"""Helpers for tests: real servers, fakes, faults, and suites that anyone's own parts can run. Imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from streaming.testing.azure import AzureServer
    from streaming.testing.faults import Fault, FaultRule, LoggedRequest, ProxyCounts, ProxyLimits
    from streaming.testing.gcs import GcsServer
    from streaming.testing.layout_contract import ExampleShard, LayoutContract
    from streaming.testing.memory import MemoryStore
    from streaming.testing.proxy import FaultProxy
    from streaming.testing.resume_law import assert_resumes_exactly
    from streaming.testing.s3 import S3Server
    from streaming.testing.sftp import SftpServer
    from streaming.testing.store_contract import StoreContract
    from streaming.testing.web import WebServer

_MODULES: Final = {
    "AzureServer": "azure",
    "ExampleShard": "layout_contract",
    "Fault": "faults",
    "FaultProxy": "proxy",
    "FaultRule": "faults",
    "GcsServer": "gcs",
    "LayoutContract": "layout_contract",
    "LoggedRequest": "faults",
    "MemoryStore": "memory",
    "ProxyCounts": "faults",
    "ProxyLimits": "faults",
    "S3Server": "s3",
    "SftpServer": "sftp",
    "StoreContract": "store_contract",
    "WebServer": "web",
    "assert_resumes_exactly": "resume_law",
}

__all__ = [
    "AzureServer",
    "ExampleShard",
    "Fault",
    "FaultProxy",
    "FaultRule",
    "GcsServer",
    "LayoutContract",
    "LoggedRequest",
    "MemoryStore",
    "ProxyCounts",
    "ProxyLimits",
    "S3Server",
    "SftpServer",
    "StoreContract",
    "WebServer",
    "assert_resumes_exactly",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'streaming.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"streaming.testing.{_MODULES[name]}"), name)
