"""Bytes from stores to this machine's cache: one helper process a machine, and the way to it.

`client` asks, `server` answers, `transfer` moves bytes as `decide` says, and `wire` is what both sides share.
"""
