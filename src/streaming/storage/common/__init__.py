"""What several kinds of stores share: diagnosis of refusals, transport settings, connection pools, optional modules."""
