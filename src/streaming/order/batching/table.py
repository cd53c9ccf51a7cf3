"""Which batching methods there are."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.order.batching import random
from streaming.order.catalog import Catalog


class Batching(Protocol):
    """Divides the shards into groups; each group is one order, and the orders are merged evenly by weight."""

    def __call__(self, catalog: Catalog, *, shuffle: bool) -> list[NDArray[np.int64]]:
        """The shards of each group, int64 (shard,) each; every shard in one group."""


BATCHINGS: Final[dict[str, Batching]] = {"random": random.groups}
LATER_BATCHINGS: Final = ("stratified", "per_stream", "device_per_stream")
