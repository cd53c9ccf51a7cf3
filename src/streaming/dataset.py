"""The dataset: settings in, samples out. Wires the parts together and holds no algorithm of its own."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from multiprocessing import context
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from streaming.errors import MissingExtraError, NotYetError, OptionError, StateError, WorldError
from streaming.indexing import Indexable, Members, checked, numbers_of
from streaming.order import (
    Cursor,
    EpochOrder,
    Explanation,
    OrderSpec,
    Schedule,
    Topology,
    explain,
    load_state,
    node_warning,
    save_state,
    working_set,
)
from streaming.read.epoch.share import Share, first_shards, read_share, shown_at_start, transfer_bytes
from streaming.read.shards.first_batch import StoreSpeed
from streaming.read.shards.sample_store import SampleStore
from streaming.read.shards.side_files import SideFiles
from streaming.read.shared.epoch_ring import EpochRing, Loader, StartedEpoch
from streaming.read.streams.cache_limit import CacheRoom
from streaming.read.telemetry.bottleneck import WaitRules
from streaming.read.telemetry.loader_watch import LoaderWatch
from streaming.read.telemetry.stats import Stats
from streaming.sizes import Sizes
from streaming.stream import Stream, StreamDefaults, resolve
from streaming.units import parse_count
from streaming.world import World

_log: Final = logging.getLogger("streaming")

try:
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise MissingExtraError(package="torch", extra="torch", purpose="StreamingDataset") from error


class StreamingDataset(Sizes, Indexable, IterableDataset[Any]):
    """Samples of one or more streams, in an order that is the same on any number of nodes, ranks and workers.

    Every `iter()` is the next epoch, this rank's and this worker's share of it. `dataset[...]` reads any samples by
    number, at once, from anywhere. A subclass may override `get_item` or `__getitem__`; iteration goes through them.

    Arguments, all by keyword:

    - `streams`, or one stream by `remote`, `local`, `split`: see `Stream`. The same for `download_retry`,
      `download_timeout`, `validate_hash`, `keep_zip`, `storage_options`, which are what a stream leaves open.
    - `batch_size`: samples per rank in a batch. Without it the batch size of a `StreamingDataLoader` counts, else 1.
    - `epoch_size` (or `samples_per_epoch`): samples in an epoch, as a number or `"64M"`; None: what the weights of the
      streams come to. `sampling_method`: which part of a stream an epoch takes, another in each (`balanced`) or always
      the same (`fixed`); `sampling_granularity`: in how many rows at a time.
    - `shuffle`, `shuffle_algo` (`py1e`, `py1s`, `py2s`, `py1b`, `py1br`, `naive`), `shuffle_seed`, `shuffle_block_size`
      (samples per canonical node within which samples mix), `num_canonical_nodes` (lanes into which an epoch is dealt).
      None: a default that depends on the data alone.
    - `batching_method`: a batch holds what comes (`random`), each stream's share (`stratified`), or one stream's
      samples alone: the global batch (`per_stream`) or each rank's (`device_per_stream`).
    - `replication`: so many consecutive ranks get the same samples.
    - `remainder`: where ranks do not divide the epoch, some samples are repeated so that all ranks have equally many
      (`pad`), some are left out (`drop`), or neither, and ranks differ by one (`exact`).
    - `predownload`: samples for which each worker announces its shards ahead; None: what the epoch needs next.
    - `cache_limit`: the most that may lie in the cache of this node, in bytes or as in `"100gb"`; None: no limit. What
      is needed last is deleted first. At least two shards must fit; if fewer fit than are in use at once, shards come
      more than once, of which a warning tells.
    - `allow_unsafe_types`: read pickled columns too. Only for data that you trust.
    - `world`: which rank this is. None: found when iteration starts, see `World.detect`.
    - `partition_algo` is accepted and has no effect.

    Other settings of `mosaicml-streaming` are known, and raise NotYetError when they are not at their default.
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
        self._world = world
        spec = OrderSpec(
            seed=shuffle_seed,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            num_canonical_nodes=num_canonical_nodes or None,  # 0 has always meant the default
            shuffle_block_size=shuffle_block_size or None,
            batching_method=batching_method,
            sampling_method=sampling_method,
            sampling_granularity=sampling_granularity,
        )
        self.streams = _streams(streams, stream_config or {}, remote=remote, local=local, split=split)
        self._fetching = StreamDefaults(
            None, download_retry, download_timeout, validate_hash, keep_zip, storage_options
        )
        defaults = replace(self._fetching, split=split)
        locations = [resolve(stream, number, defaults) for number, stream in enumerate(self.streams)]
        self._store = SampleStore(
            locations, allow_unsafe_types=allow_unsafe_types, cache_limit=cache_limit, is_shown=self._is_local_leader()
        )
        self._schedule = Schedule(
            spec,
            self._store.catalog,
            weights=[stream.weight for stream in self.streams],
            epoch_size=_epoch_size(epoch_size, samples_per_epoch),
            remainder=remainder,
            batch_size=self.batch_size,
        )
        self._ring = EpochRing()
        self._open(None)
        if self.replication > 1:
            self._topology()  # a world that it does not divide is refused now
        if self.batch_size is not None:  # else it may be made for samples by number, which need no shards
            self._look_ahead()

    def _open(self, loader_key: int | None) -> None:
        """What follows from the settings, made anew in a worker that was started with a pickle."""
        self._starter = _Starter(loader_key)
        self._has_told = self._has_told_of_room = False
        self._rooms: dict[tuple[Topology, int], CacheRoom] = {}
        self.catalog = self._store.catalog
        self._closing = weakref.finalize(self, _close, self._store, self._ring)
        self._closing.atexit = False

    # --- sizes

    @property
    def epoch_size(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self.order_of(0).n_samples

    def __len__(self) -> int:
        """Samples that this rank gets in a whole epoch; one that was resumed gives fewer."""
        return self.rank_samples(0)

    @property
    def draws_per_stream(self) -> NDArray[np.int64]:
        """Samples that each stream gives to an epoch, by its weight, int64 (stream,)."""
        return self._schedule.draws

    # --- settings that have an effect, as given or as they came out

    @property
    def shuffle(self) -> bool:
        """Whether epochs are shuffled."""
        return self._schedule.spec.shuffle

    @property
    def shuffle_algo(self) -> str:
        """How they are shuffled."""
        return self._schedule.spec.shuffle_algo

    @property
    def shuffle_seed(self) -> int:
        """What the order is drawn from, besides the data and the epoch."""
        return self._schedule.spec.seed

    @property
    def num_canonical_nodes(self) -> int:
        """Lanes into which an epoch is dealt."""
        return self.order_of(0).n_canonical_nodes

    @property
    def shuffle_block_size(self) -> int:
        """Samples of a canonical node within which they mix."""
        return self.order_of(0).shuffle_block_size

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that the next `iter()` begins, if no state was loaded."""
        return self._ring.next_epoch

    # --- samples by number

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """The sample of this number: column name to value. Waits for its shard if that must be fetched.

        `retry` is accepted for compatibility; how often a transfer is tried is `download_retry`.
        """
        del retry
        return self._store.sample(checked(int(sample_id), self.size))

    def _together(self, members: Members) -> Iterator[tuple[slice, AbstractContextManager[None]]]:
        numbers = numbers_of(members, self.size) if self._store.any_by_parts else None
        if numbers is None:  # no shard can be read by parts, or this is not yet the innermost list
            yield from super()._together(members)
        else:
            yield from self._store.together(numbers)

    def side_files(
        self, remote: str | None = None, local: str | None = None, *, storage_options: Mapping[str, Any] | None = None
    ) -> SideFiles:
        """The files below `remote` to which samples refer by name, such as videos: fetched when they are asked for.

        They come into the folder `local`, within this dataset's `cache_limit`, with its retries, timeouts and, unless
        others are given, options of the store. Without `remote` they are read in `local`.
        """
        stream = Stream(remote=remote, local=local, storage_options=storage_options)
        location = resolve(stream, 0, self._fetching)
        return self._store.side_files(replace(location, title=f"side files ({location.remote.shown})"))

    # --- epochs

    def __iter__(self) -> Iterator[Any]:
        """The next epoch's samples for this rank and worker. The epoch is settled now, not at the first sample."""
        loader = self._loader()
        started = self._ring.join(loader, n_epoch_samples=self.epoch_size)
        self._store.begin_epoch(started)
        if loader.n_workers > 1 and loader.worker == 0 and not (started.batch_size or self.batch_size):
            _log.warning(
                "StreamingDataset has no batch_size, so the batches of a plain DataLoader depend on the number of its "
                "workers; give the dataset the loader's batch_size, or use StreamingDataLoader"
            )
        if get_worker_info() is None:
            self._tell_once(started.batch_size or self.batch_size or 1)
        return self._read(started, loader)

    def _read(self, started: StartedEpoch, loader: Loader) -> Iterator[Any]:
        batch_size = started.batch_size or self.batch_size or 1
        share = Share(
            self._schedule.plan(started.epoch, self._topology(), batch_size, started.start),
            self._detect_world().rank,
            loader.worker,
            loader.n_workers,
            next_order=lambda: self.order_of(started.epoch + 1),
            predownload=self.predownload,
            room=self._room(batch_size),
            is_counted=started.batch_size is not None and get_worker_info() is not None,
        )
        samples = read_share(self._store, share, self.__getitem__ if self._makes_samples_itself() else None)
        if started.number or loader.worker or not self._is_local_leader():
            return samples
        return shown_at_start(samples, self._store, share)

    def _tell_once(self, batch_size: int) -> None:
        """Say in the rank process what a user would want to know before a long run."""
        if self._has_told:
            return
        self._has_told = True
        plan = self._schedule.plan(0, self._topology(), batch_size)
        advice = node_warning(plan) if self.shuffle else None
        if advice is not None:
            _log.warning("%s; explain() has the numbers", advice)
        self._tell_of_room(batch_size)
        left_out = plan.left_out.tolist()
        if any(left_out):
            _log.warning(
                "batching_method=%r: samples that fill no whole batch of one stream are left out of each epoch: %s",
                self._schedule.spec.batching_method,
                ", ".join(f"{n} of stream {number}" for number, n in enumerate(left_out) if n),
            )

    def _room(self, batch_size: int) -> CacheRoom | None:
        """What the cache's limit means here; None if there is none, or nothing is cached."""
        limit_bytes, topology = self._store.limit_bytes, self._topology()
        if limit_bytes is None:
            return None
        room = self._rooms.get((topology, batch_size))
        if room is None:
            needed = working_set(self._schedule.plan(0, topology, batch_size))
            room = self._rooms[topology, batch_size] = self._store.room(limit_bytes, needed)
        return room

    def _tell_of_room(self, batch_size: int) -> None:
        """Say once what a cache limit costs."""
        room = None if self._has_told_of_room else self._room(batch_size)
        if room is not None:
            self._has_told_of_room = True
            if room.advice is not None:
                _log.warning("%s; explain() has the numbers", room.advice)

    def _look_ahead(self) -> None:
        """What can be done before anybody iterates, if the world can be told: the first shards are on their way."""
        if self._store.is_in_place:
            return
        try:
            world = World.detect(is_told=False) if self._world is None else self._world
            topology = Topology.of(world.num_ranks, world.ranks_per_node, self.replication)
        except (WorldError, OptionError):  # to be said when iteration begins, if it is so then
            return
        progress, n_samples = self._ring.progress(), self._schedule.order(0, topology).n_samples
        cursor = Cursor(self._ring.next_epoch, 0)
        if progress.is_pending and progress.epoch >= 0:
            cursor = Cursor(progress.epoch, progress.start).normalised(n_samples)
        order = self._schedule.order(cursor.epoch, topology)
        self._store.announce_start(first_shards(order, topology, world.rank, cursor.consumed, self._store))

    def _makes_samples_itself(self) -> bool:
        """Whether a subclass changes what a sample is; else samples come straight from the shard."""
        kind = type(self)
        return kind.get_item is not StreamingDataset.get_item or kind.__getitem__ is not StreamingDataset.__getitem__

    def _loader(self) -> Loader:
        info, key = get_worker_info(), self._starter.key
        if info is None:
            return Loader(secrets.randbits(62) if key is None else key, 0, 1)
        return Loader(info.seed - info.id if key is None else key, info.id, info.num_workers)

    def order_of(self, epoch: int) -> EpochOrder:
        """The order of an epoch, as a function of position; the same in every process."""
        return self._schedule.order(epoch, self._topology())

    def explain(self, *, latency_s: float = 0.05, bytes_per_s: float = 200e6) -> Explanation:
        """What this configuration does on the present hardware, in numbers; `print` it for words.

        Samples of each stream, batches and padding, canonical nodes and shuffle window, shards open at once, downloads
        per shard, cache needed, the wait for the first batch, and a score of the shuffle: see docs/order.md. The store
        is taken to answer after `latency_s` and to give this node `bytes_per_s` over all connections.
        """
        topology, batch_size = self._topology(), self.batch_size or 1
        plan = self._schedule.plan(0, topology, batch_size)
        node = topology.node_of(self._detect_world().rank)
        first = self._store.first_batch(plan, node, StoreSpeed(latency_s, bytes_per_s))
        return explain(
            plan.order,
            topology,
            batch_size,
            shard_bytes=transfer_bytes(self._store, plan),
            disk_bytes=self._store.disk_bytes(all_are_cached=True),
            first_batch_bytes=first.n_bytes,
            first_batch_s=first.seconds,
            remainder=self._schedule.remainder,
        )

    def stats(self) -> Stats:
        """What this rank and its workers have done and waited for, and what the fetcher has; `print` it for words.

        Starts no fetcher, and asks none where everything is read in location.
        """
        return self._store.stats(self._detect_world().rank)

    def __repr__(self) -> str:
        shuffled = f"shuffled by {self.shuffle_algo}" if self.shuffle else "in stored order"
        try:
            world = repr(self._detect_world())
        except WorldError as error:  # to be shown, not to keep a debugger from showing the rest
            world = f"no usable world: {error}"
        return (
            f"{type(self).__name__}({self.size:,} samples in {self.num_shards:,} shards of {self.num_streams} streams, "
            f"{int(self._schedule.draws.sum()):,} an epoch, {shuffled}; {world}; explain() says more)"
        )

    def _topology(self) -> Topology:
        world = self._detect_world()
        return Topology.of(world.num_ranks, world.ranks_per_node, self.replication)

    @property
    def _n_groups(self) -> int:
        """How many different shares of a batch there are: ranks, or groups of ranks that share samples."""
        return self._topology().n_groups

    def _detect_world(self) -> World:
        return World.detect() if self._world is None else self._world

    def _is_local_leader(self) -> bool:
        """Whether this is the rank of its machine that shows something on a terminal."""
        try:
            return (World.detect(is_told=False) if self._world is None else self._world).is_local_leader
        except WorldError:  # to be said when iteration begins, if it is so then
            return False

    # --- for our loader, which begins an epoch before its workers start, and knows what the user has received

    def begin_epoch(self, key: int, n_workers: int, batch_size: int | None) -> StartedEpoch:
        """Begin the next epoch for the loader iteration of this key; its workers join it when they start."""
        self._store.hold_fetcher()
        self._tell_once(self.batch_size or batch_size or 1)
        loader = Loader(key, 0, max(1, n_workers))
        started = self._ring.begin(loader, n_epoch_samples=self.epoch_size, batch_size=self.batch_size or batch_size)
        self._store.begin_epoch(started)
        return started

    @contextmanager
    def workers_join(self, key: int) -> Iterator[None]:
        """Worker processes that this thread starts inside the block join the epochs started under this key."""
        self._starter.key = key
        try:
            yield
        finally:
            self._starter.key = None

    def watch(self, rules: WaitRules | None, n_workers: int) -> LoaderWatch:
        """What measures how training waits for a loader with so many workers."""
        world = self._detect_world()
        n_all = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        n_cores = max(1, n_all // world.ranks_per_node)
        return self._store.loader_watch(rules, rank=world.rank, n_workers=n_workers, n_cores=n_cores)

    def epoch_line(self, started: StartedEpoch) -> str:
        """What an epoch was like, in one line."""
        return self._store.epoch_line(self._detect_world().rank, started)

    def rank_samples(self, start: int) -> int:
        """Samples that this rank gets in an epoch that begins at `start`."""
        plan = self._schedule.plan(0, self._topology(), self.batch_size or 1, start)
        return plan.rank_samples(self._detect_world().rank)

    def state_of(self, started: StartedEpoch | None, n_rank_samples: int, *, is_exhausted: bool) -> dict[str, Any]:
        """The state of a loader that has handed out so many full batches, in samples, of the epoch `started`.

        Told by the plan, so that ranks of which the last batch is shorter, or missing, say the same as the others.
        """
        progress = self._ring.progress()
        if started is None or progress.is_pending:
            return self._state(progress.epoch, progress.start)
        batch_size = started.batch_size or self.batch_size or 1
        stop = self._schedule.plan(0, self._topology(), batch_size, started.start).stop  # the same in every epoch
        consumed = min(started.start + n_rank_samples * self._n_groups, stop)
        return self._state(started.epoch, max(stop, self.epoch_size) if is_exhausted else consumed)

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch that the next `iter()` begins, from its first sample."""
        if epoch < 0:
            raise OptionError(f"an epoch's number is 0 or more, not {epoch}")
        self._ring.set_next(epoch)
        self._look_ahead()

    # --- state

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Where training stands, after `num_samples` samples over all ranks; small, JSON, the same on every rank.

        `num_samples` counts from the start of the epoch if `from_beginning`, else from where this run began in it.
        """
        progress = self._ring.progress()
        return self._state(progress.epoch, num_samples + (0 if from_beginning else progress.start))

    def _state(self, epoch: int, consumed: int) -> dict[str, Any]:
        n_nodes = self._detect_world().num_nodes
        return save_state(self.order_of(0), Cursor(epoch, consumed), initial_physical_nodes=n_nodes)

    def load_state_dict(self, obj: dict[str, Any], *, accept_other_order: bool = False) -> None:
        """Go on from a state: the next `iter()` of this dataset or a loader over it begins there.

        To be called in every rank process. Raises StateError where the state belongs to other data or another order,
        naming what differs; `accept_other_order=True` then keeps its epoch and count all the same.
        """
        if get_worker_info() is not None:
            raise StateError("load a state in the rank process, not in a worker of its loader")
        cursor = load_state(obj, self.order_of(0), accept_other_order=accept_other_order)
        self._ring.resume_at(cursor.epoch, cursor.consumed)
        self._look_ahead()

    # --- life

    def close(self) -> None:
        """Give back every file, map and connection. The dataset cannot be used afterwards."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("catalog", "_closing"):
            state.pop(name, None)
        state["_starter"] = self._starter.key
        if self._world is None and context.get_spawning_popen() is not None:
            state["_world"] = self._detect_world()  # the worker may not see the process group
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(state["_starter"])


class _Starter(threading.local):
    """The key of the loader that is starting workers in this thread; a forked worker goes on as that thread."""

    def __init__(self, key: int | None) -> None:
        self.key = key


def _close(store: SampleStore, ring: EpochRing) -> None:
    store.close()
    ring.close()


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
    """Samples in an epoch; None, 0 and "" leave it to the weights. The second name is an alias of the first."""
    sizes = {parse_count(size) for size in (epoch_size, samples_per_epoch) if size}
    if len(sizes) > 1:
        raise OptionError(f"samples_per_epoch={samples_per_epoch!r} is another name of epoch_size={epoch_size!r}")
    size = sizes.pop() if sizes else None
    if size is not None and size < 0:
        raise OptionError(f"epoch_size must be 0 or more, got {size}")
    return size or None


def _refuse_what_is_not_built(*, stream_name: str) -> None:
    """Refuse settings of later versions."""
    if stream_name != "stream":
        raise NotYetError(f"stream_name={stream_name!r} has no effect in this version; leave it out")
