"""What a limit on the cache means for a dataset: refused, enough, or too tight to fetch each shard only once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.formats.names import INDEX_NAME
from streaming.order import WorkingSet
from streaming.read.streams.indexes import StreamFiles
from streaming.units import parse_bytes, shown_bytes

_MARKER_BYTES: Final = 4096  # more than the files in which the cache describes itself


def checked_limit(limit: int | str | None, streams: Sequence[StreamFiles]) -> int | None:
    """Parse a limit to bytes; None for none. Raises OptionError if not even two shards fit."""
    if limit is None:
        return None
    limit_bytes = parse_bytes(limit, name="cache_limit")
    if limit_bytes < 0:
        raise OptionError(f"cache_limit={limit!r} must be 0 or more bytes")
    least = max(map(_Least.of, streams), key=lambda least: least.n_bytes)
    if limit_bytes < least.n_bytes:
        raise OptionError(
            f"Minimum cache usage ({least.n_bytes:,} bytes) is larger than the cache limit: cache_limit={limit!r} "
            f"({limit_bytes:,} bytes) is too low. Increase the `cache_limit` to at least {least.n_bytes:,} bytes "
            f"for {least.reason}; or write shards with a smaller size_limit"
        )
    return limit_bytes


@dataclass(frozen=True, slots=True)
class _Least:
    """The smallest limit under which a stream can be read, and the reason."""

    n_bytes: int
    reason: str

    @classmethod
    def of(cls, stream: StreamFiles) -> Self:
        location, index = stream.location, stream.index
        # While one shard is read the next is fetched. Both forms of a compressed one may be there at once.
        sizes = np.where(_is_cached(stream), index.raw_bytes + np.maximum(index.zip_bytes, 0), 0)
        if not sizes.any():
            return cls(0, "")
        shard = int(sizes.argmax())
        n_bytes = 2 * int(sizes[shard])
        reason = (
            f"twice the largest shard, so that one can be read while the next comes ({location.title}: "
            f"{index.raw_name(shard)} has {int(index.raw_bytes[shard]):,} bytes"
            + (f", and {int(index.zip_bytes[shard]):,} compressed" if index.zip_name(shard) is not None else "")
            + ")"
        )
        # An uncompressed shard can be read by range, without space; a compressed one needs it, beside the index.
        beside = index_bytes([stream]) + int(sizes[shard]) + _MARKER_BYTES
        if index.is_compressed and beside > n_bytes:
            return cls(beside, f"the index and the largest shard ({location.title}: {index.raw_name(shard)})")
        return cls(n_bytes, reason)


def index_bytes(streams: Sequence[StreamFiles]) -> int:
    """Bytes of the indexes in the cache."""
    n_bytes = 0
    for stream in streams:
        with contextlib.suppress(OSError):  # it is read in place, or the cache cannot be written
            n_bytes += os.stat(os.path.join(stream.location.cache, INDEX_NAME)).st_size
    return n_bytes


def disk_bytes(streams: Sequence[StreamFiles], *, all_are_cached: bool) -> NDArray[np.int64]:
    """Bytes of each shard in the cache, int64 (shard,): 0 if it is read in place, unless `all_are_cached`."""
    sizes = []
    for stream in streams:
        index, location = stream.index, stream.location
        kept = np.maximum(index.zip_bytes, 0) if location.keep_zip else 0
        sizes.append(np.where(_is_cached(stream) | all_are_cached, index.raw_bytes + kept, 0))
    return np.concatenate(sizes).astype(np.int64)


def _is_cached(stream: StreamFiles) -> NDArray[np.bool_]:
    """Which shards come into the cache, bool (shard,): all that are fetched, and those that must be decompressed."""
    is_fetched = stream.location.source is None
    cached: NDArray[np.bool_] = (stream.index.zip_bytes >= 0) | is_fetched
    return cached


def unpacking_notes(streams: Sequence[StreamFiles], limit_bytes: int | None) -> list[str]:
    """What to tell of sources that are about to be decompressed into a folder of ours: where, and how much it takes."""
    notes = []
    for stream in streams:
        location, index = stream.location, stream.index
        is_packed = index.zip_bytes >= 0
        if location.source is None or not is_packed.any() or os.path.exists(location.cache):
            continue
        if all(
            os.path.exists(os.path.join(location.source, index.raw_name(k))) for k in np.flatnonzero(is_packed).tolist()
        ):
            continue
        n_bytes = int(index.raw_bytes[is_packed].sum())
        size = shown_bytes(n_bytes) if limit_bytes is None else f"at most {shown_bytes(min(n_bytes, limit_bytes))}"
        notes.append(
            f"{location.title} is compressed and is only read: its shards are decompressed into {location.cache} "
            f"({size}), where the next run finds them. To choose the place give `remote` and `local`, to bound it "
            "`cache_limit`"
        )
    return notes


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """A limit on the cache, compared with what a node needs."""

    limit_bytes: int
    other_bytes: int
    """Bytes of what is no shard."""
    mean_bytes: float
    """Mean size of a shard in the cache."""
    needed: WorkingSet

    @property
    def shards(self) -> float:
        """The number of shards that fit."""
        return max(0, self.limit_bytes - self.other_bytes) / max(1.0, self.mean_bytes)

    @property
    def is_tight(self) -> bool:
        """Whether fewer shards fit than a node needs in order to fetch none twice."""
        return self.shards < self.needed.shards

    @property
    def fetches_per_shard(self) -> float:
        """Expected fetches of each shard in an epoch."""
        return self.needed.fetches_per_shard(self.shards)

    @property
    def advice(self) -> str | None:
        """What to change before training starts; None if nothing."""
        if not self.is_tight:
            return None
        needed_bytes = self.needed.shards * self.mean_bytes
        return (
            f"cache_limit is {shown_bytes(self.limit_bytes)}, about {self.shards:,.0f} shards; this node needs "
            f"{shown_bytes(needed_bytes)}, about {self.needed.shards:,.0f} shards, so that it fetches none twice. "
            f"Expect up to {self.fetches_per_shard:.2g} fetches of each shard in an epoch, or single samples by range "
            "instead; raise the limit, or lower shuffle_block_size (another order: before training starts)"
        )
