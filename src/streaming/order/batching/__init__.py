"""How the streams of a dataset share an epoch: one file for each `batching_method`, and the table of them."""
