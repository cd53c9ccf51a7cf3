"""Samples by number: from shard and row to a decoded sample, wherever its bytes are."""
