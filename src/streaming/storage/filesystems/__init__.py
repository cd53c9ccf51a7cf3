"""File systems of others: HDFS, and whatever fsspec knows."""
