"""Folders of a machine that is reached by SSH."""
