"""From positions to nodes, ranks and workers. No room below this one knows the hardware that reads an epoch."""
