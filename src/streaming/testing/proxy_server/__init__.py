"""The server process of a FaultProxy: asyncio in one thread, with h11 for HTTP/1.1."""
