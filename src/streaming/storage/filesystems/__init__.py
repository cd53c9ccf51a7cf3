"""File systems: HDFS, and those of fsspec."""
