"""Buckets of S3 and its like, Google and Azure, by obstore's client."""
