"""The edge to the network: URLs, and the stores that they name."""

from streaming.storage.registry import register_all, register_store, registered_stores

__all__ = ["register_all", "register_store", "registered_stores"]
