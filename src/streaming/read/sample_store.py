"""All samples of some streams, by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import CacheTakenError
from streaming.fetch.client import FetchClient
from streaming.fetch.protocol import StreamConfig
from streaming.order import Catalog
from streaming.read.catalog_loader import StreamFiles, catalog_of, load_streams
from streaming.read.place import Place, own_folder
from streaming.read.shard_files import ShardFiles
from streaming.read.shard_reader import Sample, ShardPool

_MAX_TAKEN: Final = 3


class SampleStore:
    """What the streams at some places hold, ready to be read; safe between threads.

    Pickles as what was found at the places, without anything open. Raises the kinds of `load_streams`.
    """

    def __init__(self, places: Sequence[Place], *, allow_unsafe_types: bool, allow_empty: bool = False) -> None:
        client, streams = _loaded(places, allow_unsafe_types=allow_unsafe_types, allow_empty=allow_empty)
        self._open(client, streams, allow_unsafe_types)

    def _open(self, client: FetchClient, streams: Sequence[StreamFiles], allow_unsafe_types: bool) -> None:
        self._configuration = client, streams, allow_unsafe_types
        self.client = client
        self.catalog: Catalog = catalog_of(streams)
        self.files = ShardFiles(streams, client)
        self.pool = ShardPool(self.files, allow_unsafe_types=allow_unsafe_types)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._configuration

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._open(*state)

    def sample(self, sample_id: int) -> Sample:
        """The sample of this number, which is not checked; waits for its shard if that must be fetched."""
        return self.pool.sample_by_id(self.catalog, sample_id)

    def transfer_bytes(self) -> NDArray[np.int64]:
        """What each shard costs to fetch, int64 (shard,): its compressed bytes where it is compressed."""
        _, streams, _ = self._configuration
        sizes = [
            np.where(stream.index.zip_bytes >= 0, stream.index.zip_bytes, stream.index.raw_bytes) for stream in streams
        ]
        return np.concatenate(sizes)

    def is_complete(self) -> bool:
        """Whether every shard is on disk, so that nothing will be fetched."""
        return self.files.all_sources or all(map(self.files.is_present, range(self.catalog.n_shards)))

    def close(self) -> None:
        """Give back every file, map and connection."""
        self.pool.close()
        self.client.close()


def _loaded(
    places: Sequence[Place], *, allow_unsafe_types: bool, allow_empty: bool
) -> tuple[FetchClient, list[StreamFiles]]:
    """The client for all streams and their indexes, each in a cache folder that holds no other remote's files."""
    for attempt in range(_MAX_TAKEN):
        places = [own_folder(place) for place in places]
        # One fetcher for all streams, at the root of the first that needs fetching.
        root = next((place.root for place in places if place.source is None), places[0].root)
        providers = {number: place.credentials for number, place in enumerate(places) if place.credentials is not None}
        client = FetchClient(root, [_config(place) for place in places], providers=providers)
        try:
            return client, load_streams(places, client, allow_unsafe_types=allow_unsafe_types, allow_empty=allow_empty)
        except CacheTakenError:  # by another job, between our look and our transfer: look again
            client.close()
            if attempt + 1 == _MAX_TAKEN:
                raise
    raise AssertionError("unreachable")


def _config(place: Place) -> StreamConfig:
    return StreamConfig(
        remote=place.remote,
        local=place.cache,
        download_retry=place.download_retry,
        download_timeout=place.download_timeout,
        keep_zip=place.keep_zip,
        root=place.root,
        options=place.options,
    )
