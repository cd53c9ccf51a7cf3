"""The dataset: settings in, samples out. Wires the parts together and holds no algorithm of its own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streaming.arguments import flag, folder, mapping, place, whole
from streaming.attributes import EarlyValues, FixedSetting, Setting
from streaming.dataset_settings import DatasetSettings, epoch_size_of
from streaming.errors import MissingExtraError, NotYetError, OptionError, StateError, WorldError
from streaming.indexing import Indexable, checked
from streaming.loader_arguments import RefusesSettings
from streaming.loader_side import LoaderSide, Ranks, rank_batch_size
from streaming.order import EpochOrder, Explanation, explain
from streaming.read.epoch.share import transfer_bytes
from streaming.read.shards.first_batch import StoreSpeed
from streaming.read.shards.sample_store import SampleStore
from streaming.read.shards.side_files import SideFiles
from streaming.read.telemetry.stats import Stats
from streaming.sizes import Fact, Sizes
from streaming.stream import PlacedStream, Stream, StreamDefaults, resolve
from streaming.world import World

try:
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise MissingExtraError(package="torch", extra="torch", purpose="StreamingDataset") from error


class StreamingDataset(Sizes, Indexable, RefusesSettings, IterableDataset[Any]):
    """Samples of one or more streams, in an order that is the same on any number of nodes, ranks and workers.

    Every `iter()` is the next epoch: the share of this rank and this worker. `dataset[...]` reads any samples by
    number. A subclass may override `get_item` or `__getitem__`; iteration goes through them.

    Arguments, all by keyword:

    - `streams`, or one stream by `remote`, `local`, `split`: see `Stream`. `download_retry`, `download_timeout`,
      `validate_hash`, `keep_zip` and `storage_options` hold for streams that leave them open.
    - `batch_size`: samples per rank in a batch. None: the batch size of a `StreamingDataLoader`, else 1.
    - `epoch_size` (or `samples_per_epoch`): samples in an epoch, as a number or as in `"64M"`. None: what the weights
      of the streams come to. `sampling_method`: which part of a stream an epoch takes, another one each time
      (`balanced`) or always the same (`fixed`). `sampling_granularity`: how many consecutive rows are drawn together.
    - `shuffle`, `shuffle_algo` (`py1e`, `py1s`, `py2s`, `py1b`, `py1br`, `naive`), `shuffle_seed`, `shuffle_block_size`
      (samples per canonical node within which samples mix), `num_canonical_nodes` (parts into which an epoch is
      split, whatever the hardware). None: a default that depends on the data alone.
    - `batching_method`: what a batch holds: whatever comes (`random`), each stream's share (`stratified`), or samples
      of one stream, in each global batch (`per_stream`) or in each rank's (`device_per_stream`).
    - `batch_composition`: with `stratified`, whether batches hold each stream's share on average and nothing is left
      out (`proportional`), or every batch of a rank has the same whole number of samples of each stream, listed stream
      by stream, and the rest is dropped (`exact`).
    - `replication`: the number of consecutive ranks that get the same samples.
    - `remainder`: what happens if the number of ranks does not divide the epoch. Repeat some samples, so that all ranks
      get equally many (`pad`); leave some out (`drop`); or neither, so that ranks differ by one sample (`exact`).
    - `predownload`: samples for which each worker announces its shards ahead. None: what the epoch needs next.
    - `cache_limit`: the largest size of the cache of this node, in bytes or as in `"100gb"`; None: no limit. The shard
      that is needed last is evicted first. At least two shards must fit. If fewer fit than are in use at once, shards
      are fetched more than once, and a warning says so.
    - `allow_unsafe_types`: read pickled columns too. Only for data that you trust.
    - `world`: which rank this is. None: it is found when iteration starts, see `World.detect`.
    - `partition_algo` is accepted and has no effect.

    Each setting of the order, `batch_size` and `predownload` are attributes, too, and may be assigned until the first
    epoch begins. `streams` tells where each stream lies. Whole numbers and sizes are taken in any form that is
    unambiguous. A subclass may use any names that are not in this class.

    Other settings of `mosaicml-streaming` are known, and raise NotYetError unless they are at their default.
    Raises OptionError, IndexMissingError, ObjectMissingError and the other kinds of `streaming.errors`.
    """

    _streaming_internals: LoaderSide

    def __init__(
        self,
        *,
        streams: Iterable[Stream] | Stream | None = None,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | os.PathLike[str] | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        validate_hash: str | bool | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str | None = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: dict[str, Any] | None = None,
        remainder: str = "pad",
        samples_per_epoch: int | str | None = None,
        world: World | None = None,
        storage_options: Mapping[str, Any] | None = None,
        batch_composition: str = "proportional",
    ) -> None:
        early = vars(self).pop("_streaming_internals", None)  # what a subclass has set before
        _refuse_what_is_not_built(stream_name=stream_name)
        if partition_algo not in (None, "relaxed", "orig"):
            raise OptionError(
                f"partition_algo must be 'relaxed' or 'orig' (neither has an effect), not {partition_algo!r}"
            )
        settings = DatasetSettings(
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            batching_method=batching_method,
            sampling_method=sampling_method,
            sampling_granularity=sampling_granularity,
            batch_composition=batch_composition,
            epoch_size=epoch_size_of(epoch_size, samples_per_epoch),
            remainder=remainder,
            batch_size=batch_size,
            predownload=predownload,
        )
        given = _streams(streams, stream_config, remote=remote, local=local, split=split)
        defaults = StreamDefaults.of(
            split=split,
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
            storage_options=storage_options,
        )
        ranks = Ranks(_world(world), 1 if replication is None else whole("replication", replication, at_least=1))
        store = SampleStore(
            [resolve(stream, number, defaults) for number, stream in enumerate(given)],
            allow_unsafe_types=flag("allow_unsafe_types", allow_unsafe_types),
            cache_limit=cache_limit,
            is_shown=ranks.is_local_leader(),
        )
        self._streaming_internals = LoaderSide(store, given, defaults, settings, ranks)
        if ranks.replication > 1:
            ranks.topology()  # raises for a world that it does not divide
        if isinstance(early, EarlyValues):
            early.give_to(self)
        settings = self._streaming_internals.settings
        if settings.batch_size is not None:  # else it may be meant for samples by number, which need no shards
            if settings.predownload is not None and settings.predownload < settings.batch_size:
                warnings.warn(
                    f"predownload={settings.predownload} is below batch_size={settings.batch_size}: each batch will "
                    "wait for its shards; leave predownload out, or give several times the batch size",
                    stacklevel=2,
                )
            self._streaming_internals.announce_start()

    # --- sizes

    def __len__(self) -> int:
        """Samples that this rank gets in a whole epoch; a resumed one gives fewer."""
        side = self._streaming_internals
        return side.n_rank_samples(rank_batch_size(side.settings.batch_size))

    @Fact
    def draws_per_stream(self) -> NDArray[np.int64]:
        """Samples that each stream gives to an epoch by its weight, int64 (stream,)."""
        return self._streaming_internals.schedule.draws

    # --- settings, as given or by default; another value may be assigned until the first epoch begins

    shuffle = Setting[bool](lambda side: side.schedule.spec.shuffle, "Whether epochs are shuffled.")
    shuffle_algo = Setting[str](lambda side: side.schedule.spec.shuffle_algo, "The algorithm that shuffles them.")
    shuffle_seed = Setting[int](
        lambda side: side.schedule.spec.seed,
        "The seed of the order; else that depends on the data and the epoch alone.",
    )
    num_canonical_nodes = Setting[int](
        lambda side: side.order(0).n_canonical_nodes, "Parts into which an epoch is split, whatever the hardware."
    )
    shuffle_block_size = Setting[int](
        lambda side: side.order(0).shuffle_block_size, "Samples per canonical node within which samples mix."
    )
    batching_method = Setting[str](lambda side: side.settings.batching_method, "What a batch holds.")
    batch_composition = Setting[str](
        lambda side: side.settings.batch_composition, "Whether batches hold each stream's share on average or exactly."
    )
    sampling_method = Setting[str](lambda side: side.settings.sampling_method, "Which part of a stream an epoch takes.")
    sampling_granularity = Setting[int](
        lambda side: side.settings.sampling_granularity, "How many consecutive rows are drawn together."
    )
    epoch_size = Setting[int](lambda side: side.order(0).n_samples, "Samples in an epoch, over all ranks.")
    remainder = Setting[str](
        lambda side: side.settings.remainder, "What happens if the number of ranks does not divide the epoch."
    )
    batch_size = Setting[int | None](lambda side: side.settings.batch_size, "Samples per rank in a batch, as given.")
    predownload = Setting[int | None](
        lambda side: side.settings.predownload, "Samples for which each worker announces its shards ahead, as given."
    )

    streams = FixedSetting[tuple[PlacedStream, ...]](
        lambda side: side.placed_streams(), "The streams as they came out: where each lies and how it is fetched."
    )
    cache_limit = FixedSetting[int | None](
        lambda side: side.store.cache_limit, "The largest size of the cache, in bytes; None where there is no limit."
    )
    replication = FixedSetting[int](
        lambda side: side.ranks.replication, "The number of consecutive ranks that get the same samples."
    )
    allow_unsafe_types = FixedSetting[bool](
        lambda side: side.store.allow_unsafe_types, "Whether pickled columns are read."
    )

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that the next `iter()` begins if no state was loaded; to assign is `set_epoch`."""
        return self._streaming_internals.next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._streaming_internals.set_next(epoch)

    # --- samples by number

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Read the sample of this number: column name to value. Waits until it has been fetched.

        `retry` is accepted for compatibility and has no effect; `download_retry` says how often a transfer is tried.
        """
        del retry
        store = self._streaming_internals.store
        return store.sample(checked(whole("sample_id", sample_id), store.catalog.n_samples))

    def side_files(
        self,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> SideFiles:
        """Open files below `remote` to which samples refer by name, such as videos; each is fetched on first use.

        They are cached in the folder `local`, within this dataset's `cache_limit`, and fetched with its retries,
        timeouts and, unless others are given, storage options. Without `remote` they are read in `local`.
        """
        side = self._streaming_internals
        stream = Stream(remote=remote, local=local, storage_options=storage_options)
        location = resolve(stream, 0, replace(side.defaults, split=None))
        return side.store.side_files(replace(location, title=f"side files ({location.remote.shown})"))

    # --- epochs

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, now and not at the first sample; return its samples for this rank and worker."""
        kind = type(self)
        is_own = kind.get_item is not StreamingDataset.get_item or kind.__getitem__ is not StreamingDataset.__getitem__
        get = self.__getitem__ if is_own else None  # None: a sample comes straight from the shard
        return self._streaming_internals.samples(get, get_worker_info())

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch that the next `iter()` begins, from its first sample. Raises OptionError if it is below 0."""
        self._streaming_internals.set_next(epoch)

    def order_of(self, epoch: int) -> EpochOrder:
        """The order of an epoch as a function of position; the same in every process."""
        return self._streaming_internals.order(whole("epoch", epoch, at_least=0, what="an epoch's number"))

    # --- reports

    def explain(self, *, latency_s: float = 0.05, bytes_per_s: float = 200e6) -> Explanation:
        """Explain in numbers what this configuration does on the present hardware; `print` them for words.

        They are: samples of each stream, batches and padding, canonical nodes and shuffle window, shards open at once,
        downloads per shard, cache needed, the wait for the first batch, and a score of the shuffle; see docs/order.md.
        The store is assumed to answer after `latency_s` and to give this node `bytes_per_s` over all connections.
        Raises OptionError.
        """
        side = self._streaming_internals
        batch_size = rank_batch_size(side.settings.batch_size)
        topology = side.ranks.topology()
        plan = side.plan(0, batch_size)
        node = topology.node_of(side.ranks.world().rank)
        first = side.store.first_batch(plan, node, StoreSpeed(latency_s, bytes_per_s))
        return explain(
            plan.order,
            topology,
            batch_size,
            shard_bytes=transfer_bytes(side.store, plan),
            disk_bytes=side.store.disk_bytes(all_are_cached=True),
            first_batch_bytes=first.n_bytes,
            first_batch_s=first.seconds,
            remainder=side.schedule.remainder,
        )

    def stats(self) -> Stats:
        """Report what this rank and its workers have done and waited for, and what the fetcher has done.

        `print` it for a table. Starts no fetcher, and asks none where all data is read in place.
        """
        side = self._streaming_internals
        return side.store.stats(side.ranks.world().rank)

    def __repr__(self) -> str:
        side = self._streaming_internals
        spec, catalog = side.schedule.spec, side.store.catalog
        shuffled = f"shuffled by {spec.shuffle_algo}" if spec.shuffle else "in stored order"
        try:
            world = repr(side.ranks.world())
        except WorldError as error:  # a debugger is to show the rest all the same
            world = f"no usable world: {error}"
        return (
            f"{type(self).__name__}({catalog.n_samples:,} samples in {catalog.n_shards:,} shards of "
            f"{catalog.n_streams} streams, {int(side.schedule.draws.sum()):,} an epoch, {shuffled}; {world}; "
            "explain() says more)"
        )

    # --- state

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """The state of training after `num_samples` samples over all ranks: small, JSON, the same on every rank.

        `num_samples` counts from the start of the epoch if `from_beginning`, else from where this run began in it.
        """
        return self._streaming_internals.state(num_samples, from_beginning=from_beginning)

    def load_state_dict(self, obj: dict[str, Any], *, accept_other_order: bool = False) -> None:
        """Resume from a state: the next `iter()` of this dataset, or of a loader over it, begins there.

        Must be called in every rank process. Raises StateError where the state belongs to other data or another order,
        and names what differs; with `accept_other_order=True` its epoch and count hold all the same.
        """
        if get_worker_info() is not None:
            raise StateError("load a state in the rank process, not in a worker of its loader")
        self._streaming_internals.load_state(obj, accept_other_order=accept_other_order)

    # --- life

    def close(self) -> None:
        """Give back every file, map and connection. The dataset cannot be used afterwards."""
        self._streaming_internals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _streams(streams: Any, stream_config: Any, *, remote: Any, local: Any, split: Any) -> tuple[Stream, ...]:
    config = mapping("stream_config", stream_config) or {}
    remote, local = place("remote", remote), folder("local", local)
    if streams is None:
        if remote is None and local is None:
            raise OptionError("give `streams`, or `remote` and/or `local`")
        return (Stream(**{**config, "remote": remote, "local": local, "split": split}),)
    if config:
        raise OptionError("stream_config is for the stream that `remote` and `local` name; give it to your streams")
    if remote is not None or local is not None:
        raise OptionError("give either `streams`, or `remote` and/or `local`, not both")
    given = (streams,) if isinstance(streams, Stream) else _listed(streams)
    if not given:
        raise OptionError("`streams` is empty: give at least one Stream")
    for number, stream in enumerate(given):
        if not isinstance(stream, Stream):
            raise OptionError(f"streams[{number}] is a {type(stream).__name__}, not a Stream")
    return given


def _listed(streams: Any) -> tuple[Any, ...]:
    if isinstance(streams, Mapping):
        raise OptionError("streams is a dict, whose keys would mean nothing: give list(streams.values())")
    if isinstance(streams, Set):
        raise OptionError("streams is a set, which may come in another order in each process: give a list")
    if isinstance(streams, str | bytes) or not isinstance(streams, Iterable):
        raise OptionError(f"streams must be a list of Stream, not {streams!r}; a folder or URL goes into remote=")
    return tuple(streams)


def _world(world: Any) -> World | None:
    if world is not None and not isinstance(world, World):
        raise OptionError(
            f"world must be a World or None, not a {type(world).__name__}; World.from_mesh() makes one of a device mesh"
        )
    return world


def _refuse_what_is_not_built(*, stream_name: str) -> None:
    """Raise NotYetError for settings of later versions."""
    if stream_name != "stream":
        raise NotYetError(f"stream_name={stream_name!r} has no effect in this version; leave it out")
