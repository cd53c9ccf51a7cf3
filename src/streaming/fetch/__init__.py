"""One fetcher a machine: the client that asks, the process that moves bytes."""
