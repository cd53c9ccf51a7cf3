"""What a dataset is in numbers, taken from its catalogue, under the names that users know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from streaming.order import Catalog
from streaming.read.shards.sample_store import SampleStore

T = TypeVar("T")


class Internals(Protocol):
    """What a dataset holds under `_streaming_internals`, the only name of its own in an instance."""

    @property
    def store(self) -> SampleStore:
        """The samples."""


class Fact(Generic[T]):
    """A read-only property for users alone: a subclass may have an attribute of the same name for its own ends.

    Unlike that of a property, an assignment hides it in the instance. Nothing in the library reads it.
    """

    def __init__(self, of: Callable[[Any], T]) -> None:
        self._of = of
        self.__doc__ = of.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        return self if instance is None else self._of(instance)


class _NotMade:
    """Stands for the internals of a dataset whose constructor was not called."""

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        raise AttributeError(
            f"{owner.__name__} has no samples yet: its constructor must call super().__init__(...) before they are used"
        )


class Sizes:
    """Adds the sizes of streams and shards to a dataset."""

    _streaming_internals: Internals = cast(Any, _NotMade())

    @Fact
    def catalog(self) -> Catalog:
        """The shards of all streams, and the numbers of their samples."""
        return self._streaming_internals.store.catalog

    @Fact
    def size(self) -> int:
        """The number of samples in all streams together; `dataset[size - 1]` is the last."""
        return self._streaming_internals.store.catalog.n_samples

    @Fact
    def num_samples(self) -> int:
        """The same as `size`."""
        return self._streaming_internals.store.catalog.n_samples

    @Fact
    def num_streams(self) -> int:
        """The number of streams."""
        return self._streaming_internals.store.catalog.n_streams

    @Fact
    def num_shards(self) -> int:
        """The number of shards in all streams together."""
        return self._streaming_internals.store.catalog.n_shards

    @Fact
    def samples_per_shard(self) -> NDArray[np.int64]:
        """The number of samples in each shard, int64 (shard,); shards are numbered through all streams."""
        return self._streaming_internals.store.catalog.shard_sizes

    @Fact
    def sample_offset_per_shard(self) -> NDArray[np.int64]:
        """The number of each shard's first sample, int64 (shard,)."""
        return self._streaming_internals.store.catalog.first_sample

    @Fact
    def shards_per_stream(self) -> NDArray[np.int64]:
        """The number of shards in each stream, int64 (stream,)."""
        return self._streaming_internals.store.catalog.shards_per_stream

    @Fact
    def shard_offset_per_stream(self) -> NDArray[np.int64]:
        """The number of each stream's first shard, int64 (stream,)."""
        return _offsets(self._streaming_internals.store.catalog.shards_per_stream)

    @Fact
    def stream_per_shard(self) -> NDArray[np.int64]:
        """The number of each shard's stream, int64 (shard,)."""
        return self._streaming_internals.store.catalog.stream_of_shard

    @Fact
    def samples_per_stream(self) -> NDArray[np.int64]:
        """The number of samples in each stream, int64 (stream,)."""
        return self._streaming_internals.store.catalog.samples_per_stream

    @Fact
    def sample_offset_per_stream(self) -> NDArray[np.int64]:
        """The number of each stream's first sample, int64 (stream,)."""
        return _offsets(self._streaming_internals.store.catalog.samples_per_stream)


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(counts) - counts
