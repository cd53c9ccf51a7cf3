"""One sub-order: which runs an epoch reads of some shards, dealt to canonical nodes and shuffled, evaluated lazily."""
