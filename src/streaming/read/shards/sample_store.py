"""All samples of some streams, by number."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import CacheTakenError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import START, RangeAsk, Reason
from streaming.formats.names import INDEX_NAME
from streaming.order import Catalog, EpochPlan, WorkingSet
from streaming.read.shards.files import ShardFiles
from streaming.read.shards.first_batch import FirstBatch, StoreSpeed, first_batch
from streaming.read.shards.lookup import SampleLookup
from streaming.read.shards.pool import Sample, ShardPool
from streaming.read.shards.range_reader import RangeReader
from streaming.read.shards.side_files import SideFiles
from streaming.read.shared.epoch_ring import StartedEpoch
from streaming.read.streams.cache_limit import CacheRoom, checked_limit, disk_bytes, index_bytes, unpacking_notes
from streaming.read.streams.copies import current_copies
from streaming.read.streams.indexes import StreamFiles, catalog_of, load_streams
from streaming.read.streams.location import StreamLocation, config_of, own_folder
from streaming.read.streams.recovery import discard_lost
from streaming.read.telemetry.bottleneck import WaitRules
from streaming.read.telemetry.counters import SharedCounters, Stopwatch, WaitRecorder
from streaming.read.telemetry.loader_monitor import LoaderMonitor
from streaming.read.telemetry.progress_bar import first_samples_shown, indexes_shown
from streaming.read.telemetry.stats import FetcherStats, ReadingStats, Stats, epoch_line, stream_stats

_log: Final = logging.getLogger("streaming")
_MAX_AT_START: Final = 16
"""Shards announced before an epoch has started,"""
_START_SHARE: Final = 0.75
"""and the share of a limited cache that they may take."""
_MAX_TAKEN: Final = 3
"""Times that a cache folder may become another remote's before the indexes are read."""


class SampleStore:
    """The samples of some streams, ready to be read. Safe between threads.

    Pickles as what was found at the locations, without anything open.
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
        """Read the indexes at these locations, fetching those that are not on disk.

        `cache_limit`: the most that may lie in the cache, in bytes or as in "100gb"; None: what the disk holds.
        `is_shown`: this rank speaks for its machine, and a terminal may show how many indexes have come. Raises the
        kinds of `load_streams` and `checked_limit`.
        """
        counters = SharedCounters(len(locations))
        waits = WaitRecorder(counters)
        locations, client, streams = _loaded(
            locations, waits, allow_unsafe_types=allow_unsafe_types, allow_empty=allow_empty, is_shown=is_shown
        )
        limit_bytes = checked_limit(cache_limit, streams)
        if limit_bytes is not None:  # the fetcher hears of it only now that it is known to be enough
            client.close()
            client = _client(locations, limit_bytes, waits)
        if is_shown:
            for note in unpacking_notes(streams, limit_bytes):
                _log.warning("%s", note)
        self._open(_Contents(client, streams, counters, waits, limit_bytes, allow_unsafe_types))

    def _open(self, contents: _Contents) -> None:
        """Make what belongs to one process."""
        client, streams, counters = contents.client, contents.streams, contents.counters
        self._contents = contents
        self.client, self.counters = client, counters
        self._side_files: weakref.WeakSet[SideFiles] = weakref.WeakSet()
        self._has_start = False  # whether the first shards of an epoch were announced before it has started
        self.catalog: Catalog = catalog_of(streams)
        is_limited = contents.limit_bytes is not None
        self.files = ShardFiles(streams, client, counters, may_vanish=is_limited)
        self.pool = ShardPool(self.files, allow_unsafe_types=contents.allow_unsafe_types)
        self.ranges = RangeReader(client, self.files, self.pool)
        # Under a limit nobody knows how long a shard stays that is read by number, so none is kept open for that.
        self.lookup = SampleLookup(self.files, self.pool, self.ranges, keeps_open=not is_limited)

    def __getstate__(self) -> _Contents:
        return self._contents

    def __setstate__(self, contents: _Contents) -> None:
        self._open(contents)

    # --- how it was made

    @property
    def locations(self) -> Sequence[StreamLocation]:
        """Where the files of each stream are."""
        return [stream.location for stream in self._contents.streams]

    @property
    def cache_limit(self) -> int | None:
        """The most that may lie in the cache, in bytes; None for no limit."""
        return self._contents.limit_bytes

    @property
    def allow_unsafe_types(self) -> bool:
        """Whether columns are read whose decoding may run any code."""
        return self._contents.allow_unsafe_types

    # --- samples by number

    def sample(self, sample_id: int) -> Sample:
        """The sample of this number, which is not checked; waits for it if it must be fetched."""
        shard = int(np.searchsorted(self.catalog.first_sample, sample_id, "right")) - 1
        row = sample_id - int(self.catalog.first_sample[shard])
        opened = self.pool.open_shards.get(shard)
        if opened is None:
            if self._has_start and self.lookup.is_absent(shard):
                self._withdraw_start()
            opened = self.lookup.find(shard, row)
        return opened.sample(row)

    @property
    def any_by_parts(self) -> bool:
        """Whether samples of any shard can be read without the rest of it, so that reading many together pays."""
        return self.files.any_by_parts

    def together(self, sample_ids: NDArray[np.int64]) -> Iterator[tuple[slice, AbstractContextManager[None]]]:
        """Cut a list of numbers into parts to be read together: hundreds of samples, of limited size.

        Each comes with a block in which `sample` has its samples at hand, in this thread.
        """
        rules, begin = self.client.rules, 0
        while begin < len(sample_ids):
            shards, _ = self.catalog.locate(sample_ids[begin : begin + rules.list_samples])
            n_bytes = np.cumsum(self.files.mean_record_bytes(shards))
            fits = int(np.searchsorted(n_bytes, rules.list_bytes, "right"))
            part = slice(begin, begin + max(1, fits))
            yield part, self._at_hand(sample_ids[part])
            begin = part.stop

    @contextmanager
    def _at_hand(self, sample_ids: NDArray[np.int64]) -> Iterator[None]:
        """In the block, `sample` in this thread has these samples at hand: those not on disk came in one request."""
        shards, rows = self.catalog.locate(sample_ids)
        is_absent = {shard: self.lookup.is_absent(shard) for shard in np.unique(shards).tolist()}
        wanted: dict[int, dict[int, None]] = {}
        for shard, row in zip(shards.tolist(), rows.tolist()):
            if is_absent[shard]:
                wanted.setdefault(shard, {})[row] = None
        asked = {shard: list(of) for shard, of in wanted.items()}
        if asked and self._has_start:
            self._withdraw_start()
        with self.lookup.using(self.ranges.read(asked, RangeAsk(Reason.RANDOM)) if asked else {}):
            yield

    # --- files and their sizes

    @property
    def is_in_place(self) -> bool:
        """Whether every stream is read where it lies, uncompressed, so that nothing is ever fetched."""
        return self.files.is_in_place

    def is_complete(self) -> bool:
        """Whether every shard is on disk, so that nothing will be fetched."""
        return self.is_in_place or all(map(self.files.is_present, range(self.catalog.n_shards)))

    def transfer_bytes(self) -> NDArray[np.int64]:
        """The bytes to fetch for each shard, compressed where it is compressed: int64 (shard,)."""
        indexes = [stream.index for stream in self._contents.streams]
        return np.concatenate([np.where(index.zip_bytes >= 0, index.zip_bytes, index.raw_bytes) for index in indexes])

    def disk_bytes(self, *, all_are_cached: bool) -> NDArray[np.int64]:
        """The bytes that each shard takes in the cache: int64 (shard,).

        0 where it is read in place, unless `all_are_cached`.
        """
        return disk_bytes(self._contents.streams, all_are_cached=all_are_cached)

    @property
    def limit_bytes(self) -> int | None:
        """The limit of the cache; None if there is none, or nothing is ever cached."""
        return None if self.is_in_place else self._contents.limit_bytes

    def room(self, limit_bytes: int, needed: WorkingSet) -> CacheRoom:
        """The room under a limit beside what a node needs."""
        mean_bytes = float(self.disk_bytes(all_are_cached=False).mean())
        return CacheRoom(limit_bytes, index_bytes(self._contents.streams), mean_bytes, needed)

    def first_batch(self, plan: EpochPlan, node: int, speed: StoreSpeed) -> FirstBatch:
        """Estimate what a node waits for before the first batch of an epoch, from what is on disk now."""
        client = self.client
        return first_batch(plan, node, self.files, speed, client.rules, shards_at_once=client.n_transfers)

    def side_files(self, location: StreamLocation) -> SideFiles:
        """The files at another location, by the same fetcher and within the same limit; closed with this store."""
        files = SideFiles(location, self.client.root, self._contents.limit_bytes)
        self._side_files.add(files)
        return files

    # --- before and between epochs

    def announce_start(self, shards: Sequence[int]) -> None:
        """Have the first of these shards fetched before anybody reads. Sends nothing if they are on disk."""
        first = shards[:_MAX_AT_START]
        limit_bytes = self._contents.limit_bytes
        if limit_bytes is not None:  # no more than readers will name: the rest would be given up half-way
            taken = np.cumsum(self.disk_bytes(all_are_cached=False)[list(first)])
            first = first[: int(np.searchsorted(taken, _START_SHARE * limit_bytes, "right"))]
        if all(map(self.files.is_present, first)):
            return
        self.client.announce(START, [self.files.request(shard) for shard in first])
        self.client.hold()
        self._has_start = True

    def _withdraw_start(self) -> None:
        """Take back `announce_start`: a program that reads by number before any epoch may not need the first shards."""
        self._has_start = False
        self.client.announce(START, ())

    def hold_fetcher(self) -> None:
        """Keep the fetcher alive until `close`, so that it reads ahead while workers are replaced between epochs.

        Nothing if all is on disk. Raises ClosedError.
        """
        self.pool.check_open()
        if not self.is_complete():
            self.client.hold()

    def begin_epoch(self, started: StartedEpoch) -> None:
        """Count from now on, in this process, for an epoch that has started."""
        self.counters.begin_epoch(started.number, started.epoch)

    # --- what it is like

    def stopwatch(self) -> Stopwatch:
        """Begin to measure what a reader does in this thread."""
        return Stopwatch(self.counters, self.catalog.stream_of_shard)

    def monitor(self, rules: WaitRules | None, *, rank: int, n_workers: int, n_cores: int) -> LoaderMonitor:
        """Make the monitor of how a rank waits for a loader. `rules`: None warns of nothing."""
        return LoaderMonitor(self.counters, self.client, rules, rank=rank, n_workers=n_workers, n_cores=n_cores)

    def first_shown(self, samples: Iterator[Any], n_samples: int, shards: Callable[[], Sequence[int]]) -> Iterator[Any]:
        """The same samples; while the first `n_samples` are waited for, a terminal shows how many of `shards` came."""
        is_present, waits = self.files.is_present, self._contents.waits
        return first_samples_shown(samples, n_samples, shards, is_present, waits, self.client)

    def stats(self, rank: int) -> Stats:
        """What this rank, its workers and the fetcher have done and waited for. Starts no fetcher."""
        epoch, of_epoch = self.counters.epoch_reading()
        since_start = self.counters.reading()
        numbers = None if self.is_in_place else self.client.status_if_any()
        locations = [stream.location for stream in self._contents.streams]
        return Stats(
            rank=rank,
            epoch=epoch,
            since_start=ReadingStats.of(since_start),
            of_epoch=ReadingStats.of(of_epoch),
            fetcher=None if numbers is None else FetcherStats.of(numbers),
            streams=tuple(stream_stats(locations, since_start, numbers)),
        )

    def epoch_line(self, rank: int, started: StartedEpoch) -> str:
        """What an epoch of a rank was like, in one line."""
        _, reading = self.counters.epoch_reading(started.number)
        return epoch_line(rank, started.epoch, ReadingStats.of(reading))

    # --- life

    def close(self) -> None:
        """Give back every file, map and connection. Reading raises ClosedError from now on."""
        self.pool.close()
        self._has_start = False
        for files in self._side_files:
            files.close()
        self.client.close()
        self.counters.close()


@dataclass(frozen=True, slots=True)
class _Contents:
    """What a store is made from in each process."""

    client: FetchClient
    streams: Sequence[StreamFiles]
    counters: SharedCounters
    waits: WaitRecorder
    limit_bytes: int | None
    allow_unsafe_types: bool


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
        current = current_copies(locations, client)
        if current != locations:
            client.close()
            locations, client = current, _client(current, None, waits)
        paths = [
            os.path.join(location.cache, INDEX_NAME) for location in locations if location.source is None and is_shown
        ]
        try:
            with indexes_shown(waits, client, paths):
                streams = load_streams(
                    locations, client, allow_unsafe_types=allow_unsafe_types, allow_empty=allow_empty
                )
            discard_lost(streams)
            return locations, client, streams
        except CacheTakenError:  # by another job, after our look and before our transfer: look again
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
