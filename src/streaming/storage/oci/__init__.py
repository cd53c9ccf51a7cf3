"""Oracle's Object Storage, by its own interface or through S3's protocol."""
