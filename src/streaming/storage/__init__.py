"""The edge to the network: URL → store."""

from streaming.storage.registry import register_all, register_store, registered_stores

__all__ = ["register_all", "register_store", "registered_stores"]
