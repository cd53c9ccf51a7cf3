"""Moving bytes: what `decide` comes to, carried out with threads, stores and the disk."""
