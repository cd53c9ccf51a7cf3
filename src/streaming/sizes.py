"""The sizes of a dataset and its parts, taken from its catalogue, under the names that users know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.order import Catalog


class Sizes:
    """Adds the sizes of streams and shards to a class that has a `catalog`."""

    catalog: Catalog

    @property
    def size(self) -> int:
        """The number of samples in all streams together; `dataset[size - 1]` is the last."""
        return self.catalog.n_samples

    @property
    def num_samples(self) -> int:
        """The same as `size`."""
        return self.catalog.n_samples

    @property
    def num_streams(self) -> int:
        """The number of streams."""
        return self.catalog.n_streams

    @property
    def num_shards(self) -> int:
        """The number of shards in all streams together."""
        return self.catalog.n_shards

    @property
    def samples_per_shard(self) -> NDArray[np.int64]:
        """The number of samples in each shard, int64 (shard,); shards are numbered through all streams."""
        return self.catalog.shard_sizes

    @property
    def sample_offset_per_shard(self) -> NDArray[np.int64]:
        """The number of each shard's first sample, int64 (shard,)."""
        return self.catalog.first_sample

    @property
    def shards_per_stream(self) -> NDArray[np.int64]:
        """The number of shards in each stream, int64 (stream,)."""
        return self.catalog.shards_per_stream

    @property
    def shard_offset_per_stream(self) -> NDArray[np.int64]:
        """The number of each stream's first shard, int64 (stream,)."""
        return np.cumsum(self.shards_per_stream) - self.shards_per_stream

    @property
    def stream_per_shard(self) -> NDArray[np.int64]:
        """The number of each shard's stream, int64 (shard,)."""
        return self.catalog.stream_of_shard

    @property
    def samples_per_stream(self) -> NDArray[np.int64]:
        """The number of samples in each stream, int64 (stream,)."""
        return self.catalog.samples_per_stream

    @property
    def sample_offset_per_stream(self) -> NDArray[np.int64]:
        """The number of each stream's first sample, int64 (stream,)."""
        return np.cumsum(self.samples_per_stream) - self.samples_per_stream
