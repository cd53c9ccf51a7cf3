"""The dataset: settings in, samples out. Wires the parts together and holds no algorithm of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streaming.errors import MissingExtraError, NotYetError, OptionError, StateError, WorldError
from streaming.indexing import Indexable, Members, checked, numbers_of
from streaming.loader_side import LoaderSide, Ranks, rank_batch_size
from streaming.order import EpochOrder, Explanation, OrderSpec, Schedule, explain
from streaming.read.epoch.share import transfer_bytes
from streaming.read.shards.first_batch import StoreSpeed
from streaming.read.shards.sample_store import SampleStore
from streaming.read.shards.side_files import SideFiles
from streaming.read.telemetry.stats import Stats
from streaming.sizes import Sizes
from streaming.stream import Stream, StreamDefaults, resolve
from streaming.units import parse_count
from streaming.world import World

try:
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise MissingExtraError(package="torch", extra="torch", purpose="StreamingDataset") from error


class StreamingDataset(Sizes, Indexable, IterableDataset[Any]):
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

    Other settings of `mosaicml-streaming` are known, and raise NotYetError unless they are at their default.
    Raises OptionError, IndexMissingError, ObjectMissingError and the other kinds of `streaming.errors`.
    """

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        validate_hash: str | bool | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
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
        _refuse_what_is_not_built(stream_name=stream_name)
        if partition_algo not in ("relaxed", "orig"):
            raise OptionError(
                f"partition_algo must be 'relaxed' or 'orig' (neither has an effect), not {partition_algo!r}"
            )
        self.batch_size = _positive("batch_size", batch_size)
        self.predownload = _positive("predownload", predownload)
        self.allow_unsafe_types = allow_unsafe_types
        self.replication = _positive("replication", replication) or 1
        spec = OrderSpec(
            seed=shuffle_seed,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            num_canonical_nodes=num_canonical_nodes or None,  # 0 has always meant the default
            shuffle_block_size=shuffle_block_size or None,
            batching_method=batching_method,
            sampling_method=sampling_method,
            sampling_granularity=sampling_granularity,
            batch_composition=batch_composition,
        )
        self.streams = _streams(streams, stream_config or {}, remote=remote, local=local, split=split)
        self._stream_defaults = StreamDefaults(
            None, download_retry, download_timeout, validate_hash, keep_zip, storage_options
        )
        defaults = replace(self._stream_defaults, split=split)
        locations = [resolve(stream, number, defaults) for number, stream in enumerate(self.streams)]
        ranks = Ranks(world, self.replication)
        self._store = SampleStore(
            locations,
            allow_unsafe_types=allow_unsafe_types,
            cache_limit=cache_limit,
            is_shown=ranks.is_local_leader(),
        )
        self.catalog = self._store.catalog
        schedule = Schedule(
            spec,
            self.catalog,
            weights=[stream.weight for stream in self.streams],
            epoch_size=_epoch_size(epoch_size, samples_per_epoch),
            remainder=remainder,
            batch_size=self.batch_size,
        )
        self._loader_side = LoaderSide(self._store, schedule, ranks)
        if self.replication > 1:
            ranks.topology()  # raises for a world that it does not divide
        if self.batch_size is not None:  # else it may be meant for samples by number, which need no shards
            self._loader_side.announce_start()

    # --- sizes

    @property
    def epoch_size(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self.order_of(0).n_samples

    def __len__(self) -> int:
        """Samples that this rank gets in a whole epoch; a resumed one gives fewer."""
        return self._loader_side.n_rank_samples(rank_batch_size(self.batch_size))

    @property
    def draws_per_stream(self) -> NDArray[np.int64]:
        """Samples that each stream gives to an epoch by its weight, int64 (stream,)."""
        return self._loader_side.schedule.draws

    # --- settings, as given or by default

    @property
    def shuffle(self) -> bool:
        """Whether epochs are shuffled."""
        return self._loader_side.schedule.spec.shuffle

    @property
    def shuffle_algo(self) -> str:
        """The algorithm that shuffles them."""
        return self._loader_side.schedule.spec.shuffle_algo

    @property
    def shuffle_seed(self) -> int:
        """The seed of the order, which otherwise depends on the data and the epoch alone."""
        return self._loader_side.schedule.spec.seed

    @property
    def num_canonical_nodes(self) -> int:
        """Parts into which an epoch is split, whatever the hardware."""
        return self.order_of(0).n_canonical_nodes

    @property
    def shuffle_block_size(self) -> int:
        """Samples per canonical node within which samples mix."""
        return self.order_of(0).shuffle_block_size

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that the next `iter()` begins if no state was loaded."""
        return self._loader_side.next_epoch

    # --- samples by number

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Read the sample of this number: column name to value. Waits until it has been fetched.

        `retry` is accepted for compatibility and has no effect; `download_retry` says how often a transfer is tried.
        """
        del retry
        return self._store.sample(checked(int(sample_id), self.size))

    def _together(self, members: Members) -> Iterator[tuple[slice, AbstractContextManager[None]]]:
        numbers = numbers_of(members, self.size) if self._store.any_by_parts else None
        if numbers is None:  # samples come with their whole shard, or this is not the innermost list yet
            yield from super()._together(members)
        else:
            yield from self._store.together(numbers)

    def side_files(
        self, remote: str | None = None, local: str | None = None, *, storage_options: Mapping[str, Any] | None = None
    ) -> SideFiles:
        """Open files below `remote` to which samples refer by name, such as videos; each is fetched on first use.

        They are cached in the folder `local`, within this dataset's `cache_limit`, and fetched with its retries,
        timeouts and, unless others are given, storage options. Without `remote` they are read in `local`.
        """
        stream = Stream(remote=remote, local=local, storage_options=storage_options)
        location = resolve(stream, 0, self._stream_defaults)
        return self._store.side_files(replace(location, title=f"side files ({location.remote.shown})"))

    # --- epochs

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, now and not at the first sample; return its samples for this rank and worker."""
        kind = type(self)
        is_own = kind.get_item is not StreamingDataset.get_item or kind.__getitem__ is not StreamingDataset.__getitem__
        get = self.__getitem__ if is_own else None  # None: a sample comes straight from the shard
        return self._loader_side.samples(self.batch_size, self.predownload, get, get_worker_info())

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch that the next `iter()` begins, from its first sample. Raises OptionError if it is below 0."""
        self._loader_side.set_next(epoch)

    def order_of(self, epoch: int) -> EpochOrder:
        """The order of an epoch as a function of position; the same in every process."""
        return self._loader_side.order(epoch)

    # --- reports

    def explain(self, *, latency_s: float = 0.05, bytes_per_s: float = 200e6) -> Explanation:
        """Explain in numbers what this configuration does on the present hardware; `print` them for words.

        They are: samples of each stream, batches and padding, canonical nodes and shuffle window, shards open at once,
        downloads per shard, cache needed, the wait for the first batch, and a score of the shuffle; see docs/order.md.
        The store is assumed to answer after `latency_s` and to give this node `bytes_per_s` over all connections.
        Raises OptionError.
        """
        side, batch_size = self._loader_side, rank_batch_size(self.batch_size)
        topology = side.ranks.topology()
        plan = side.plan(0, batch_size)
        node = topology.node_of(side.ranks.world().rank)
        first = self._store.first_batch(plan, node, StoreSpeed(latency_s, bytes_per_s))
        return explain(
            plan.order,
            topology,
            batch_size,
            shard_bytes=transfer_bytes(self._store, plan),
            disk_bytes=self._store.disk_bytes(all_are_cached=True),
            first_batch_bytes=first.n_bytes,
            first_batch_s=first.seconds,
            remainder=side.schedule.remainder,
        )

    def stats(self) -> Stats:
        """Report what this rank and its workers have done and waited for, and what the fetcher has done.

        `print` it for a table. Starts no fetcher, and asks none where all data is read in place.
        """
        return self._store.stats(self._loader_side.ranks.world().rank)

    def __repr__(self) -> str:
        shuffled = f"shuffled by {self.shuffle_algo}" if self.shuffle else "in stored order"
        try:
            world = repr(self._loader_side.ranks.world())
        except WorldError as error:  # a debugger is to show the rest all the same
            world = f"no usable world: {error}"
        return (
            f"{type(self).__name__}({self.size:,} samples in {self.num_shards:,} shards of {self.num_streams} streams, "
            f"{int(self.draws_per_stream.sum()):,} an epoch, {shuffled}; {world}; explain() says more)"
        )

    # --- state

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """The state of training after `num_samples` samples over all ranks: small, JSON, the same on every rank.

        `num_samples` counts from the start of the epoch if `from_beginning`, else from where this run began in it.
        """
        return self._loader_side.state(num_samples, from_beginning=from_beginning)

    def load_state_dict(self, obj: dict[str, Any], *, accept_other_order: bool = False) -> None:
        """Resume from a state: the next `iter()` of this dataset, or of a loader over it, begins there.

        Must be called in every rank process. Raises StateError where the state belongs to other data or another order,
        and names what differs; with `accept_other_order=True` its epoch and count hold all the same.
        """
        if get_worker_info() is not None:
            raise StateError("load a state in the rank process, not in a worker of its loader")
        self._loader_side.load_state(obj, accept_other_order=accept_other_order)

    # --- life

    def close(self) -> None:
        """Give back every file, map and connection. The dataset cannot be used afterwards."""
        self._store.close()
        self._loader_side.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "catalog"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.catalog = self._store.catalog


def _streams(
    streams: Sequence[Stream] | None,
    stream_config: dict[str, Any],
    *,
    remote: str | None,
    local: str | None,
    split: str | None,
) -> tuple[Stream, ...]:
    if streams is None:
        if remote is None and local is None:
            raise OptionError("give `streams`, or `remote` and/or `local`")
        return (Stream(**{**stream_config, "remote": remote, "local": local, "split": split}),)
    if stream_config:
        raise OptionError("stream_config is for the stream that `remote` and `local` name; give it to your streams")
    if remote is not None or local is not None:
        raise OptionError("give either `streams`, or `remote` and/or `local`, not both")
    if not streams:
        raise OptionError("`streams` is empty: give at least one Stream")
    for number, stream in enumerate(streams):
        if not isinstance(stream, Stream):
            raise OptionError(f"streams[{number}] is a {type(stream).__name__}, not a Stream")
    return tuple(streams)


def _positive(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise OptionError(f"{name} must be a number of samples, 1 or more, or None, not {value!r}")
    return int(value)


def _epoch_size(epoch_size: int | str | None, samples_per_epoch: int | str | None) -> int | None:
    """Samples in an epoch; None, 0 and "" leave that to the weights. The second name is an alias of the first."""
    sizes = {parse_count(size) for size in (epoch_size, samples_per_epoch) if size}
    if len(sizes) > 1:
        raise OptionError(f"samples_per_epoch={samples_per_epoch!r} is another name of epoch_size={epoch_size!r}")
    size = sizes.pop() if sizes else None
    if size is not None and size < 0:
        raise OptionError(f"epoch_size must be 0 or more, got {size}")
    return size or None


def _refuse_what_is_not_built(*, stream_name: str) -> None:
    """Raise NotYetError for settings of later versions."""
    if stream_name != "stream":
        raise NotYetError(f"stream_name={stream_name!r} has no effect in this version; leave it out")
