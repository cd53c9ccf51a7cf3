"""What tests need: real servers, fakes and suites that anyone's own parts can run. Loaded when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from streaming.testing.azure import AzureServer
    from streaming.testing.gcs import GcsServer
    from streaming.testing.memory import MemoryStore
    from streaming.testing.s3 import S3Server
    from streaming.testing.sftp import SftpServer
    from streaming.testing.store_contract import StoreContract
    from streaming.testing.web import WebServer

_HOMES: Final = {
    "AzureServer": "streaming.testing.azure",
    "GcsServer": "streaming.testing.gcs",
    "MemoryStore": "streaming.testing.memory",
    "S3Server": "streaming.testing.s3",
    "SftpServer": "streaming.testing.sftp",
    "StoreContract": "streaming.testing.store_contract",
    "WebServer": "streaming.testing.web",
}

__all__ = ["AzureServer", "GcsServer", "MemoryStore", "S3Server", "SftpServer", "StoreContract", "WebServer"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'streaming.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
