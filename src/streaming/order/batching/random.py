"""`random`: every batch holds what the common order of all streams has at its positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.order.catalog import Catalog


def groups(catalog: Catalog, *, shuffle: bool) -> list[NDArray[np.int64]]:
    """All shards in one order when shuffling; else each stream in its own, to be merged evenly by weight."""
    shards = np.arange(catalog.n_shards, dtype=np.int64)
    if shuffle:
        return [shards]
    return np.split(shards, np.cumsum(catalog.shards_per_stream)[:-1]) if catalog.n_streams else [shards]
