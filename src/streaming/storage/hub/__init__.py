"""Data sets of the Hugging Face hub."""
