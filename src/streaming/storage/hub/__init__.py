"""Data sets on the Hugging Face hub."""
