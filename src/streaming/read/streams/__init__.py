"""Where the files of each stream are, what its index says, and what a limit on the cache means for it."""
