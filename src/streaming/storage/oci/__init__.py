"""Oracle's Object Storage."""
