"""One sub-order: the runs that an epoch reads of some shards, dealt to canonical nodes, shuffled and read lazily."""
