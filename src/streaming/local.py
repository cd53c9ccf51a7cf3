"""A dataset in a folder of this machine, as a map-style PyTorch dataset."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from streaming.arguments import flag, whole
from streaming.errors import MissingExtraError, SampleIndexError
from streaming.indexing import Indexable, checked
from streaming.loader_side import Ranks
from streaming.read.shards.sample_store import SampleStore
from streaming.sizes import Sizes
from streaming.stream import Stream, StreamDefaults, resolve

try:
    from torch.utils.data import Dataset
except ImportError as error:
    raise MissingExtraError(package="torch", extra="torch", purpose="LocalDataset") from error


class LocalDataset(Sizes, Indexable, Dataset[Any]):
    """The samples of a folder by number, in stored order: `LocalDataset(local, split)[i]`.

    The folder is never written. A compressed shard is decompressed into a private folder in the system's temporary
    directory when it is first used. The next run finds it there, and `cache_limit` bounds that folder. Pickled columns
    need `allow_unsafe_types=True`. Raises IndexMissingError, SampleIndexError (an IndexError) for a dataset without
    samples, and the other kinds of `streaming.errors`.
    """

    _streaming_internals: _Inside

    def __init__(
        self,
        local: str | os.PathLike[str],
        split: str | os.PathLike[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
        cache_limit: int | str | None = None,
    ) -> None:
        stream = Stream(local=local, split=split)
        self.local = stream.local
        self.split = split
        is_unsafe_allowed = flag("allow_unsafe_types", allow_unsafe_types)
        location = resolve(stream, 0, StreamDefaults())
        store = SampleStore(
            [location],
            allow_unsafe_types=is_unsafe_allowed,
            allow_empty=True,
            cache_limit=cache_limit,
            is_shown=Ranks(None, 1).is_local_leader(),
        )
        self._streaming_internals = _Inside(store)
        if not store.catalog.n_samples:
            raise SampleIndexError(f"{location.title} has no samples")

    def __len__(self) -> int:
        """The number of samples."""
        return self._streaming_internals.store.catalog.n_samples

    def get_item(self, sample_id: int) -> Any:
        """The sample `sample_id`, a dict from column name to value."""
        store = self._streaming_internals.store
        return store.sample(checked(whole("sample_id", sample_id), store.catalog.n_samples))

    def close(self) -> None:
        """Close every file and connection."""
        self._streaming_internals.store.close()


@dataclass(frozen=True, slots=True)
class _Inside:
    """A local dataset inside."""

    store: SampleStore
