"""This machine's copy of the data: which files lie on disk, how they appear, and which are evicted."""
