"""From positions to nodes, ranks and workers: the only room that knows the hardware that reads an epoch."""
