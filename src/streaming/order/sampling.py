"""From draws to passes: how often each shard is read whole, and what a fraction of a pass takes from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.errors import NotYetError
from streaming.order.catalog import Catalog


def whole_passes(catalog: Catalog, draws: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often an epoch reads each shard whole, int64 (shard,); 0 for shards without samples.

    Raises NotYetError where a stream's draws are no multiple of its size: the rest of a pass is not sampled yet.
    """
    sizes = np.maximum(catalog.samples_per_stream, 1)
    passes, rest = np.divmod(draws, sizes)
    broken = np.flatnonzero(rest)
    if broken.size:
        stream = int(broken[0])
        raise NotYetError(
            f"stream {stream} is to give {int(draws[stream])} of its {int(sizes[stream])} samples: parts of a pass "
            "(proportion, repeat, choose, epoch_size) are not available yet; draw a multiple of its size"
        )
    return np.where(catalog.shard_sizes > 0, passes[catalog.stream_of_shard], 0)
