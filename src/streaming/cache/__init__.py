"""This machine's copy of the data: which files lie there, and how they come and go."""
