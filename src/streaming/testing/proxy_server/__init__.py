"""The process of a FaultProxy: asyncio and the standard library alone, one thread."""
