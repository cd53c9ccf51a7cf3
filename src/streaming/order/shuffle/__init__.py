"""The order of the samples in a canonical node: a file per `shuffle_algo`, and their table."""
