"""A dataset that lies on this machine, as a map-style PyTorch dataset."""

from __future__ import annotations

from typing import Any

from streaming.errors import MissingExtraError, SampleIndexError
from streaming.fetch.client import FetchClient
from streaming.fetch.protocol import StreamConfig
from streaming.indexing import Indexable, checked
from streaming.read.catalog_loader import catalog_of, load_streams
from streaming.read.shard_files import ShardFiles
from streaming.read.shard_reader import ShardPool
from streaming.stream import Stream, StreamDefaults, make_private_cache, resolve

try:
    from torch.utils.data import Dataset
except ImportError as error:
    raise MissingExtraError(package="torch", extra="torch", purpose="LocalDataset") from error


class LocalDataset(Indexable, Dataset[Any]):
    """The samples of a folder by number, in stored order: `LocalDataset(local, split)[i]`.

    The folder is only read. Compressed shards are decompressed into a private folder in the system's temporary
    directory when they are first used. Pickled columns need `allow_unsafe_types=True`. Raises IndexMissingError,
    SampleIndexError (an IndexError) for a dataset without samples, and the other kinds of `streaming.errors`.
    """

    def __init__(self, local: str, split: str | None = None, *, allow_unsafe_types: bool = False) -> None:
        self.local = local
        self.split = split
        self.allow_unsafe_types = allow_unsafe_types
        place = resolve(Stream(local=local, split=split), 0, StreamDefaults())
        make_private_cache(place)
        self._client = FetchClient(place.root, [StreamConfig(remote=place.remote, local=place.cache)])
        self._loaded = load_streams([place], self._client, allow_unsafe_types=allow_unsafe_types, allow_empty=True)
        if not self._loaded[0].index.n_samples:
            raise SampleIndexError(f"{place.title} has no samples")
        self._open()

    def _open(self) -> None:
        self.catalog = catalog_of(self._loaded)
        files = ShardFiles(self._loaded, self._client)
        self._pool = ShardPool(files, allow_unsafe_types=self.allow_unsafe_types)

    @property
    def size(self) -> int:
        """How many samples there are."""
        return self.catalog.n_samples

    @property
    def num_samples(self) -> int:
        """The same as `size`."""
        return self.catalog.n_samples

    def __len__(self) -> int:
        """How many samples there are."""
        return self.catalog.n_samples

    def get_item(self, sample_id: int) -> Any:
        """The sample of this number: column name to value."""
        return self._pool.sample_by_id(self.catalog, checked(int(sample_id), self.size))

    def close(self) -> None:
        """Give back every file and connection."""
        self._pool.close()
        self._client.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("catalog", "_pool"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
