"""One worker's share of an epoch: planned in segments, announced ahead, fetched, and read in order."""
