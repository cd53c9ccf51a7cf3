"""How the streams of a dataset share an epoch: a file per `batching_method`, their table, and the merges they use."""
