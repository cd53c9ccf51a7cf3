"""A dataset in a folder of this machine, as a map-style PyTorch dataset."""

from __future__ import annotations

from typing import Any

from streaming.errors import MissingExtraError, SampleIndexError
from streaming.indexing import Indexable, checked
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
    directory when it is first used. Pickled columns need `allow_unsafe_types=True`. Raises IndexMissingError,
    SampleIndexError (an IndexError) for a dataset without samples, and the other kinds of `streaming.errors`.
    """

    def __init__(self, local: str, split: str | None = None, *, allow_unsafe_types: bool = False) -> None:
        self.local = local
        self.split = split
        location = resolve(Stream(local=local, split=split), 0, StreamDefaults())
        self._store = SampleStore([location], allow_unsafe_types=allow_unsafe_types, allow_empty=True)
        self.catalog = self._store.catalog
        if not self.size:
            raise SampleIndexError(f"{location.title} has no samples")

    def __len__(self) -> int:
        """The number of samples."""
        return self.size

    def get_item(self, sample_id: int) -> Any:
        """The sample `sample_id`, a dict from column name to value."""
        return self._store.sample(checked(int(sample_id), self.size))

    def close(self) -> None:
        """Close every file and connection."""
        self._store.close()
