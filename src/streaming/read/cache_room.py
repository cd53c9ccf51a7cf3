"""What a limit on the cache means for a dataset: refused, enough, or so tight that shards come more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order import WorkingSet
from streaming.read.catalog_loader import StreamFiles
from streaming.units import parse_bytes, shown_bytes


def checked_limit(limit: int | str | None, streams: Sequence[StreamFiles]) -> int | None:
    """The limit in bytes, None for none. Raises OptionError for one under which not even two shards have room."""
    if limit is None:
        return None
    limit_bytes = parse_bytes(limit)
    if limit_bytes < 0:
        raise OptionError(f"cache_limit={limit!r} must be 0 or more bytes")
    largest = [_largest(stream) for stream in streams]
    n_bytes, number, shard = max(largest, default=(0, 0, 0))
    if limit_bytes >= 2 * n_bytes:
        return limit_bytes
    place, index = streams[number].place, streams[number].index
    zip_name = index.zip_name(shard)
    raise OptionError(
        f"cache_limit={limit!r} ({limit_bytes:,} bytes) is too small: at least {2 * n_bytes:,} bytes are needed, twice "
        f"the largest shard ({place.title}: {index.raw_name(shard)} has {int(index.raw_bytes[shard]):,} bytes"
        + (f", and {int(index.zip_bytes[shard]):,} compressed" if zip_name is not None else "")
        + "), so that one can be read while the next comes; raise the limit, or write shards with a smaller size_limit"
    )


def disk_bytes(streams: Sequence[StreamFiles], *, all_are_cached: bool) -> NDArray[np.int64]:
    """What each shard takes in the cache, int64 (shard,): 0 where it is read in place, unless `all_are_cached`."""
    sizes = []
    for stream in streams:
        index, place = stream.index, stream.place
        kept = np.maximum(index.zip_bytes, 0) if place.keep_zip else 0
        sizes.append(np.where(_is_cached(stream) | all_are_cached, index.raw_bytes + kept, 0))
    return np.concatenate(sizes).astype(np.int64)


def _is_cached(stream: StreamFiles) -> NDArray[np.bool_]:
    """Which shards come to the cache, bool (shard,): all that are fetched, and what must be decompressed."""
    is_fetched = stream.place.source is None
    cached: NDArray[np.bool_] = (stream.index.zip_bytes >= 0) | is_fetched
    return cached


def _largest(stream: StreamFiles) -> tuple[int, int, int]:
    """The most bytes that a shard takes while it comes, the stream's number, and the shard's in it."""
    index = stream.index
    sizes = np.where(_is_cached(stream), index.raw_bytes + np.maximum(index.zip_bytes, 0), 0)
    shard = int(sizes.argmax()) if len(sizes) else 0
    return int(sizes[shard]) if len(sizes) else 0, stream.number, shard


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """A limit beside what a node needs. `mean_bytes`: of a shard in the cache."""

    limit_bytes: int
    mean_bytes: float
    needed: WorkingSet

    @property
    def shards(self) -> float:
        """How many shards fit."""
        return self.limit_bytes / max(1.0, self.mean_bytes)

    @property
    def is_tight(self) -> bool:
        """Whether fewer fit than a node needs so that it fetches none twice."""
        return self.shards < self.needed.shards

    @property
    def fetches_per_shard(self) -> float:
        """How often each shard will be fetched in an epoch."""
        return self.needed.fetches_per_shard(self.shards)

    @property
    def advice(self) -> str | None:
        """What is better changed before training starts."""
        if not self.is_tight:
            return None
        needed_bytes = self.needed.shards * self.mean_bytes
        return (
            f"cache_limit is {shown_bytes(self.limit_bytes)}, about {self.shards:,.0f} shards; this node needs "
            f"{shown_bytes(needed_bytes)}, about {self.needed.shards:,.0f} shards, so that it fetches none twice. "
            f"Expect up to {self.fetches_per_shard:.2g} fetches of each shard in an epoch, or single samples by range "
            "instead; raise the limit, or lower shuffle_block_size (another order: before training starts)"
        )
