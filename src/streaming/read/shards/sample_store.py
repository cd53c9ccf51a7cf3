"""All samples of some streams, by number."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import CacheTakenError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import START, RangeAsk, Reason
from streaming.formats.names import INDEX_NAME
from streaming.order import Catalog, WorkingSet
from streaming.read.shards.files import ShardFiles
from streaming.read.shards.lookup import SampleFinder
from streaming.read.shards.pool import Sample, ShardPool
from streaming.read.shards.range_reader import RangeReader
from streaming.read.shards.side_files import SideFiles
from streaming.read.streams.cache_limit import CacheRoom, checked_limit, disk_bytes, index_bytes
from streaming.read.streams.indexes import StreamFiles, catalog_of, load_streams
from streaming.read.streams.location import StreamLocation, config_of, own_folder
from streaming.read.telemetry.counters import SharedCounters, Stopwatch
from streaming.read.telemetry.progress_bar import indexes_shown
from streaming.read.telemetry.wait_recorder import WaitRecorder

_MAX_STAGED: Final = 1024  # samples that are read together
_MAX_STAGED_BYTES: Final = 32 << 20
_MAX_AT_START: Final = 16
_START_SHARE: Final = 0.75  # of the cache

_MAX_TAKEN: Final = 3


class SampleStore:
    """What the streams at some locations hold, ready to be read; safe between threads.

    `cache_limit`: the most that may lie in the cache, in bytes or as in "100gb"; None: what the disk holds. `is_shown`:
    a terminal may say how far the indexes are. Pickles as what was found at the locations, without anything open. Raises
    the kinds of `load_streams` and `checked_limit`.
    """

    def __init__(
        self,
        locations: Sequence[StreamLocation],
        *,
        allow_unsafe_types: bool,
        allow_empty: bool = False,
        cache_limit: int | str | None = None,
        is_shown: bool = False,
    ) -> None:
        counters = SharedCounters(len(locations))
        waits = WaitRecorder(counters)
        locations, client, streams = _loaded(
            locations, waits, allow_unsafe_types=allow_unsafe_types, allow_empty=allow_empty, is_shown=is_shown
        )
        limit_bytes = checked_limit(cache_limit, streams)
        if limit_bytes is not None:  # told to the fetcher only now that it is known to be enough
            client.close()
            client = _client(locations, limit_bytes, waits)
        self._open(client, streams, allow_unsafe_types, limit_bytes, counters, waits)

    def _open(
        self,
        client: FetchClient,
        streams: Sequence[StreamFiles],
        allow_unsafe_types: bool,
        limit_bytes: int | None,
        counters: SharedCounters,
        waits: WaitRecorder,
    ) -> None:
        self._configuration = client, streams, allow_unsafe_types, limit_bytes, counters, waits
        self.client = client
        self.counters = counters
        self.waits = waits
        self.limit_bytes = limit_bytes
        self._side_files: weakref.WeakSet[SideFiles] = weakref.WeakSet()
        self._has_start = False  # whether the first shards of an epoch were announced before it has started
        self.catalog: Catalog = catalog_of(streams)
        is_limited = limit_bytes is not None
        self.files = ShardFiles(streams, client, counters, may_vanish=is_limited)
        self.pool = ShardPool(self.files, allow_unsafe_types=allow_unsafe_types)
        self.ranges = RangeReader(client, self.files, self.pool)
        # Under a limit nobody knows how long a shard stays that is read by number, so none is kept open for that.
        self.finder = SampleFinder(self.files, self.pool, self.ranges, keeps_open=not is_limited)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._configuration

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._open(*state)

    def sample(self, sample_id: int) -> Sample:
        """The sample of this number, which is not checked; waits for it if it must be fetched."""
        shard = int(np.searchsorted(self.catalog.first_sample, sample_id, "right")) - 1
        row = sample_id - int(self.catalog.first_sample[shard])
        opened = self.pool.open_shards.get(shard)
        if opened is None:
            if self._has_start and self._is_missing(shard):
                self._withdraw_start()
            opened = self.finder.find(shard, row)
        return opened.sample(row)

    # --- many by number

    def together(self, sample_ids: NDArray[np.int64]) -> Iterator[slice]:
        """Parts of a list of numbers that are to be read together: some hundred samples, of bounded size."""
        begin = 0
        while begin < len(sample_ids):
            shards, _ = self.catalog.locate(sample_ids[begin : begin + _MAX_STAGED])
            n_bytes = np.cumsum(self.files.mean_record_bytes(shards))
            fits = int(np.searchsorted(n_bytes, _MAX_STAGED_BYTES, "right"))
            yield slice(begin, begin + max(1, fits))
            begin += max(1, fits)

    @contextmanager
    def at_hand(self, sample_ids: NDArray[np.int64]) -> Iterator[None]:
        """In the block, `sample` in this thread has these samples at hand: what is not on disk came in one go."""
        shards, rows = self.catalog.locate(sample_ids)
        is_missing = {shard: self._is_missing(shard) for shard in np.unique(shards).tolist()}
        wanted: dict[int, dict[int, None]] = {}
        for shard, row in zip(shards.tolist(), rows.tolist()):
            if is_missing[shard]:
                wanted.setdefault(shard, {})[row] = None
        asked = {shard: list(of) for shard, of in wanted.items()}
        if asked and self._has_start:
            self._withdraw_start()
        with self.finder.using(self.ranges.read(asked, RangeAsk(Reason.RANDOM)) if asked else {}):
            yield

    def _is_missing(self, shard: int) -> bool:
        """Whether single samples of the shard are read from the store."""
        files = self.files
        return bool(files.by_parts[shard]) and shard not in self.pool.open_shards and not files.is_present(shard)

    # --- what there is

    def side_files(self, location: StreamLocation) -> SideFiles:
        """The files at another location, through the same fetcher and within the same limit; closed with this store."""
        files = SideFiles(location, self.client.root, self.limit_bytes)
        self._side_files.add(files)
        return files

    def announce_start(self, shards: Sequence[int]) -> None:
        """Have the first of these shards come before anybody reads; silent if they are on disk."""
        first = shards[:_MAX_AT_START]
        if self.limit_bytes is not None:  # no more than readers will name: the rest would be given up half-way
            lying = np.cumsum(self.disk_bytes(all_are_cached=False)[list(first)])
            first = first[: int(np.searchsorted(lying, _START_SHARE * self.limit_bytes, "right"))]
        if all(map(self.files.is_present, first)):
            return
        self.client.announce(START, [self.files.need(shard) for shard in first])
        self.client.hold()
        self._has_start = True

    def _withdraw_start(self) -> None:
        """Whoever reads samples by number before any epoch has started does not want the shards of the first."""
        self._has_start = False
        self.client.announce(START, ())

    def transfer_bytes(self) -> NDArray[np.int64]:
        """What each shard costs to fetch, int64 (shard,): its compressed bytes where it is compressed."""
        streams = self._configuration[1]
        sizes = [
            np.where(stream.index.zip_bytes >= 0, stream.index.zip_bytes, stream.index.raw_bytes) for stream in streams
        ]
        return np.concatenate(sizes)

    def disk_bytes(self, *, all_are_cached: bool) -> NDArray[np.int64]:
        """What each shard takes in the cache, int64 (shard,): 0 where it is read in location, unless `all_are_cached`."""
        return disk_bytes(self._configuration[1], all_are_cached=all_are_cached)

    def room(self, limit_bytes: int, needed: WorkingSet) -> CacheRoom:
        """What a limit means beside what a node needs."""
        mean_bytes = float(self.disk_bytes(all_are_cached=False).mean())
        return CacheRoom(limit_bytes, index_bytes(self._configuration[1]), mean_bytes, needed)

    def is_complete(self) -> bool:
        """Whether every shard is on disk, so that nothing will be fetched."""
        return self.files.all_sources or all(map(self.files.is_present, range(self.catalog.n_shards)))

    # --- what is told

    @property
    def locations(self) -> list[StreamLocation]:
        """Where the streams are."""
        return [stream.location for stream in self._configuration[1]]

    def stopwatch(self) -> Stopwatch:
        """Begin to measure what a reader does in this thread."""
        return Stopwatch(self.counters, self.catalog.stream_of_shard)

    def close(self) -> None:
        """Give back every file, map and connection."""
        self.pool.close()
        for files in self._side_files:
            files.close()
        self.client.close()
        self.counters.close()


def _loaded(
    locations: Sequence[StreamLocation],
    waits: WaitRecorder,
    *,
    allow_unsafe_types: bool,
    allow_empty: bool,
    is_shown: bool,
) -> tuple[Sequence[StreamLocation], FetchClient, list[StreamFiles]]:
    """The indexes of all streams, each in a cache folder that holds no other remote's files, and their client."""
    for attempt in range(_MAX_TAKEN):
        locations = [own_folder(location) for location in locations]
        client = _client(locations, None, waits)
        paths = [
            os.path.join(location.cache, INDEX_NAME) for location in locations if location.source is None and is_shown
        ]
        try:
            with indexes_shown(waits, client, paths):
                streams = load_streams(
                    locations, client, allow_unsafe_types=allow_unsafe_types, allow_empty=allow_empty
                )
            return locations, client, streams
        except CacheTakenError:  # by another job, between our look and our transfer: look again
            client.close()
            if attempt + 1 == _MAX_TAKEN:
                raise
    raise AssertionError("unreachable")


def _client(locations: Sequence[StreamLocation], limit_bytes: int | None, waits: WaitRecorder) -> FetchClient:
    """One client for all streams; its fetcher is at the root of the first that needs fetching."""
    root = next((location.root for location in locations if location.source is None), locations[0].root)
    providers = {
        number: location.credentials for number, location in enumerate(locations) if location.credentials is not None
    }
    configs = list(map(config_of, locations))
    return FetchClient(root, configs, providers=providers, cache_limit=limit_bytes, observer=waits)
