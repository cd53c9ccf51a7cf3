"""Buckets of S3 and compatible services, of Google and of Azure, through obstore."""
