"""The data to order: how many samples each shard holds, and which stream it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError

MOST_ROWS_PER_SHARD: Final = 1 << 31


@dataclass(frozen=True, eq=False)
class Catalog:
    """The shards of all streams, stream after stream; sample ids count through them in this order.

    `shard_sizes`: samples in each shard, int64 (shard,), 0 allowed. `shards_per_stream`: int64 (stream,), in the order
    of the shards. Both are copied and made read-only. Raises OptionError if they are not whole numbers in range.
    """

    shard_sizes: NDArray[np.int64]
    shards_per_stream: NDArray[np.int64]
    first_sample: NDArray[np.int64] = field(init=False, repr=False)
    """Id of the first sample of each shard, int64 (shard,)."""
    stream_of_shard: NDArray[np.int64] = field(init=False, repr=False)
    """Stream of each shard, int64 (shard,)."""
    samples_per_stream: NDArray[np.int64] = field(init=False, repr=False)
    """Samples of each stream, int64 (stream,)."""

    def __post_init__(self) -> None:
        sizes = _counts(self.shard_sizes, "shard_sizes")
        per_stream = _counts(self.shards_per_stream, "shards_per_stream")
        if sizes.size and int(sizes.max()) > MOST_ROWS_PER_SHARD:
            shard = int(sizes.argmax())
            raise OptionError(
                f"shard {shard} has {int(sizes[shard])} samples; at most {MOST_ROWS_PER_SHARD} are allowed"
            )
        if int(per_stream.sum()) != len(sizes):
            raise OptionError(
                f"shards_per_stream adds up to {int(per_stream.sum())}, but there are {len(sizes)} shards"
            )
        ends = np.cumsum(sizes)
        stream_ends = np.concatenate([np.zeros(1, np.int64), ends])[np.cumsum(per_stream)]
        derived = {
            "shard_sizes": sizes,
            "shards_per_stream": per_stream,
            "first_sample": ends - sizes,
            "stream_of_shard": np.repeat(np.arange(len(per_stream), dtype=np.int64), per_stream),
            "samples_per_stream": np.diff(stream_ends, prepend=np.int64(0)),
        }
        for name, values in derived.items():
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    @property
    def n_shards(self) -> int:
        """The number of shards."""
        return len(self.shard_sizes)

    @property
    def n_streams(self) -> int:
        """The number of streams."""
        return len(self.shards_per_stream)

    @property
    def n_samples(self) -> int:
        """The number of samples in all shards together."""
        return int(self.first_sample[-1] + self.shard_sizes[-1]) if self.n_shards else 0

    def locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard and row of every sample id, unchecked. int64 (sample,) -> two of (sample,)."""
        # Side right: empty shards begin at the id of the next full one, which is the last of those with that id.
        shards = np.searchsorted(self.first_sample, ids, side="right") - 1
        return shards, ids - self.first_sample[shards]


def _counts(values: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    counts = np.asarray(values)
    if counts.ndim != 1 or (counts.size and counts.dtype.kind not in "iu"):
        raise OptionError(f"{name} must be a list of whole numbers, got {counts.ndim} axes of {counts.dtype}")
    if counts.size and (int(counts.min()) < 0 or int(counts.max()) >= 1 << 62):
        raise OptionError(f"{name} must not be negative or huge, got {int(counts.min())}..{int(counts.max())}")
    return counts.astype(np.int64)
