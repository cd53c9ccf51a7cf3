"""The edge to the network: URL → store."""
