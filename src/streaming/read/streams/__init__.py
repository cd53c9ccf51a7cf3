"""Where each stream's files are, what its index says, and what a limit on the cache means for it."""
