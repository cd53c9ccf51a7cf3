"""A dataset as its loaders see it: epochs begun, joined by workers, read, measured, and resumed."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import context, parent_process
from typing import Any, Final

from streaming.arguments import flag, whole
from streaming.dataset_settings import DatasetSettings
from streaming.errors import OptionError, StateError, WorldError
from streaming.fork_safety import is_loader_worker
from streaming.order import (
    Cursor,
    EpochOrder,
    EpochPlan,
    OrderSpec,
    Schedule,
    Topology,
    load_state,
    node_warning,
    save_state,
    spec_of_state,
    working_set,
)
from streaming.read.epoch.share import Share, first_shards, read_share, shown_at_start
from streaming.read.shards.sample_store import SampleStore
from streaming.read.shared.epoch_ring import EpochRing, LoadedOrder, Loader, StartedEpoch
from streaming.read.streams.cache_limit import CacheRoom
from streaming.read.telemetry.bottleneck import WaitRules
from streaming.read.telemetry.loader_monitor import LoaderMonitor
from streaming.stream import PlacedStream, Stream, StreamDefaults, weight_of
from streaming.units import parse_bytes
from streaming.world import World

_FIXED_DEFAULTS: Final = {"cache_limit": None, "replication": None, "allow_unsafe_types": False}
_log: Final = logging.getLogger("streaming")


def rank_batch_size(of_dataset: int | None, of_loader: int | None = None) -> int:
    """Samples per rank in a batch: the dataset's setting, else the loader's, else 1."""
    return of_dataset or of_loader or 1


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which rank this is of which ranks: as the user says, else as the environment says at the time of the call.

    A loader worker that was started with a pickle may not see the process group. So the pickle holds the world that
    was found; processes that are no loader workers find their own.
    """

    given: World | None
    replication: int
    of_starter: tuple[int, World] | None = None
    """The process that made the pickle with which this one, or one above it, was started; and its world."""

    def world(self, *, is_logged: bool = True) -> World:
        """Which rank this is. `is_logged`: log it once if it was found. Raises WorldError."""
        if self.given is not None:
            return self.given
        if self.of_starter is not None and is_loader_worker():
            process, world = self.of_starter
            rank = parent_process()
            if rank is not None and rank.pid == process:  # else a rank was started from it, and forked this worker
                return world
        return World.detect(is_logged=is_logged)

    def topology(self, *, is_logged: bool = True) -> Topology:
        """Which ranks exist. Raises WorldError, and OptionError if `replication` does not divide them."""
        world = self.world(is_logged=is_logged)
        return Topology.of(world.num_ranks, world.ranks_per_node, self.replication)

    def is_local_leader(self) -> bool:
        """Whether this is the rank of its machine that shows something on a terminal."""
        try:
            return self.world(is_logged=False).is_local_leader
        except WorldError:  # raised when iteration begins, if it is still so
            return False

    def __reduce__(self) -> tuple[Any, ...]:
        found = None
        if self.given is None and context.get_spawning_popen() is not None:
            with suppress(WorldError):  # it is raised where the world is needed, if it is still so
                found = os.getpid(), self.world(is_logged=False)
        return Ranks, (self.given, self.replication, found)


class LoaderSide:
    """A dataset inside: its samples, its settings, its epochs, and where training stands in them. Thread-safe.

    PyTorch's loader only iterates: each worker joins its epoch. Our own loader also begins the epoch, in the rank
    process before its workers start, and knows what the user has received. A pickle for a worker process shares the
    epochs; any other has none yet.
    """

    def __init__(
        self,
        store: SampleStore,
        streams: tuple[Stream, ...],
        defaults: StreamDefaults,
        settings: DatasetSettings,
        ranks: Ranks,
    ) -> None:
        """Put the parts of a dataset together. Raises OptionError for settings that do not fit the data."""
        self._open(store, streams, defaults, settings, ranks, EpochRing(), LoadedOrder(), None)

    def _open(
        self,
        store: SampleStore,
        streams: tuple[Stream, ...],
        defaults: StreamDefaults,
        settings: DatasetSettings,
        ranks: Ranks,
        ring: EpochRing,
        loaded: LoadedOrder,
        key: int | None,
    ) -> None:
        self.store, self.defaults, self.ranks = store, defaults, ranks
        self._streams, self._ring = streams, ring
        self._weights = tuple(map(weight_of, streams))
        self._starter = _Starter(key)
        self._said_once = False
        self._rooms: dict[tuple[Topology, int], CacheRoom] = {}
        self.settings = settings
        self._loaded = loaded
        self.schedule = self._schedule_of(settings, self._loaded)

    # --- settings

    def _schedule_of(self, settings: DatasetSettings, loaded: LoadedOrder) -> Schedule:
        spec = settings.spec
        if loaded.is_any:
            spec = replace(
                spec,
                seed=loaded.seed,
                num_canonical_nodes=loaded.n_canonical_nodes or None,
                shuffle_block_size=loaded.block_size or None,
            )
        return self._schedule(settings, spec)

    def _schedule(self, settings: DatasetSettings, spec: OrderSpec) -> Schedule:
        return Schedule(
            spec,
            self.store.catalog,
            weights=self._weights,
            epoch_size=settings.epoch_size,
            remainder=settings.remainder,
            batch_size=settings.batch_size,
        )

    def change(self, name: str, value: Any) -> None:
        """Give a setting another value. Raises OptionError once an epoch has begun, and in a loader's worker."""
        settings = replace(self.settings, **{name: value})
        if settings == self.settings:
            return
        if is_loader_worker() or self._ring.has_begun:
            raise OptionError(
                f"{name} cannot become {value!r} any more: an epoch has begun or a state was loaded. Set it before the "
                f"first iter(), or make a dataset with StreamingDataset(..., {name}={value!r})"
            )
        self.schedule = self._schedule_of(settings, self._loaded)
        self.settings = settings
        self._rooms = {}
        self._said_once = False
        if settings.batch_size is not None:
            self.announce_start()

    def placed_streams(self) -> tuple[PlacedStream, ...]:
        """The streams as they came out."""
        placed = zip(self._streams, self.store.locations)
        return tuple(PlacedStream(stream, location, self.defaults) for stream, location in placed)

    def is_default(self, name: str) -> bool:
        """Whether a setting that is fixed by now has the value of a constructor's argument that was left out."""
        return name in _FIXED_DEFAULTS and self.is_as_made(name, _FIXED_DEFAULTS[name])

    def is_as_made(self, name: str, value: Any) -> bool:
        """Whether a value of a fixed setting is the one that the dataset was made with. Raises OptionError."""
        if name == "streams":
            if value is None:
                return len(self._streams) == 1
            listed = [value] if isinstance(value, Stream) else list(value)
            return len(listed) == len(self._streams) and all(map(_is_of, listed, self._streams))
        if name == "cache_limit":
            return self.store.cache_limit == (None if value is None else parse_bytes(value, name=name))
        if name == "replication":
            return self.ranks.replication == (1 if value is None else whole(name, value, at_least=1))
        return self.store.allow_unsafe_types == flag(name, value or False)

    def _use(self, loaded: LoadedOrder) -> None:
        """Go on in the order that a loaded state has decided, which a worker hears of with its epoch."""
        if loaded != self._loaded:
            self.schedule = self._schedule_of(self.settings, loaded)
            self._loaded, self._rooms = loaded, {}

    # --- the order

    def order(self, epoch: int) -> EpochOrder:
        """The order of an epoch; the same in every process."""
        return self.schedule.order(epoch, self.ranks.topology())

    def plan(self, epoch: int, batch_size: int, start: int = 0) -> EpochPlan:
        """Who gets what in an epoch of which `start` samples are spent."""
        return self.schedule.plan(epoch, self.ranks.topology(), batch_size, start)

    def n_rank_samples(self, batch_size: int, start: int = 0) -> int:
        """Samples that this rank gets in an epoch of which `start` samples over all ranks are spent."""
        return self.plan(0, batch_size, start).rank_samples(self.ranks.world().rank)

    # --- for our own loader

    def begin_epoch(self, key: int, n_workers: int, batch_size: int) -> StartedEpoch:
        """Begin the next epoch for the loader iteration of this key; its workers join it when they start."""
        self.store.hold_fetcher()
        self._advise(batch_size)
        loader = Loader(key, 0, max(1, n_workers))
        n_epoch_samples = self.plan(0, batch_size).spent_at
        started = self._ring.begin(loader, n_epoch_samples=n_epoch_samples, batch_size=batch_size)
        self.store.begin_epoch(started)
        return started

    @contextmanager
    def workers_join(self, key: int) -> Iterator[None]:
        """Make worker processes that this thread starts in the block join the epochs begun under this key."""
        self._starter.key = key
        try:
            yield
        finally:
            self._starter.key = None

    def monitor(self, rules: WaitRules | None, n_workers: int) -> LoaderMonitor:
        """Make the monitor of a loader with `n_workers` workers."""
        world = self.ranks.world()
        n_all = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        n_cores = max(1, n_all // world.ranks_per_node)
        return self.store.monitor(rules, rank=world.rank, n_workers=n_workers, n_cores=n_cores)

    def epoch_line(self, started: StartedEpoch) -> str:
        """Sum up an epoch in one line."""
        return self.store.epoch_line(self.ranks.world().rank, started)

    def loader_state(self, started: StartedEpoch | None, n_samples: int, *, is_exhausted: bool) -> dict[str, Any]:
        """The state of a loader that has handed out `n_samples` samples of the epoch `started`, in full batches.

        The plan tells what that is over all ranks, so ranks whose last batch is shorter or missing agree with the
        others. `started`: None if the loader has begun no epoch.
        """
        progress = self._ring.progress()
        if started is None or progress.is_pending:
            return self._state(Cursor(progress.epoch, progress.start))
        stop = self.plan(0, started.batch_size, started.start).stop  # the same in every epoch
        consumed = min(started.start + n_samples * self.ranks.topology().n_groups, stop)
        return self._state(Cursor(started.epoch, max(stop, self.order(0).n_samples) if is_exhausted else consumed))

    # --- iteration

    def samples(self, get: Callable[[int], Any] | None, worker_info: Any | None) -> Iterator[Any]:
        """Join the loader's epoch, or begin the next one; return this worker's samples of it.

        `get(sample_id)` makes a sample in a way of the user's; None: it comes straight from the shard. `worker_info`:
        PyTorch's; None in the rank process.
        """
        batch_size, predownload = self.settings.batch_size, self.settings.predownload
        loader = self._loader(worker_info)
        for_rank = rank_batch_size(batch_size)
        started = self._ring.join(loader, n_epoch_samples=self.plan(0, for_rank).spent_at, batch_size=for_rank)
        self._use(started.loaded)
        self.store.begin_epoch(started)
        if batch_size is None and not started.is_counted and loader.n_workers > 1 and loader.worker == 0:
            _log.warning(
                "StreamingDataset has no batch_size, so the batches of a plain DataLoader depend on the number of its "
                "workers; give the dataset the loader's batch_size, or use StreamingDataLoader"
            )
        if worker_info is None:
            self._advise(started.batch_size)
        share = Share(
            self.plan(started.epoch, started.batch_size, started.start),
            self.ranks.world().rank,
            loader.worker,
            loader.n_workers,
            next_order=lambda: self.order(started.epoch + 1),
            predownload=None if predownload is None else max(1, predownload),  # 0: as few as can be
            room=self._room(started.batch_size),
            is_counted=started.is_counted and worker_info is not None,
        )
        samples = read_share(self.store, share, get)
        if started.number or loader.worker or not self.ranks.is_local_leader():
            return samples
        return shown_at_start(samples, self.store, share)

    def announce_start(self) -> None:
        """Announce the first shards of the next epoch before it begins, if the world is known already."""
        if self.store.is_in_place:
            return
        try:
            rank, topology = self.ranks.world(is_logged=False).rank, self.ranks.topology(is_logged=False)
        except (WorldError, OptionError):  # raised when iteration begins, if it is still so
            return
        progress, cursor = self._ring.progress(), Cursor(self._ring.next_epoch, 0)
        if progress.is_pending and progress.epoch >= 0:
            n_samples = self.schedule.order(0, topology).n_samples
            cursor = Cursor(progress.epoch, progress.start).normalised(n_samples)
        order = self.schedule.order(cursor.epoch, topology)
        self.store.announce_start(first_shards(order, topology, rank, cursor.consumed, self.store))

    def _loader(self, worker_info: Any | None) -> Loader:
        """The loader for which this process iterates."""
        key = self._starter.key
        if worker_info is None:
            return Loader(secrets.randbits(62) if key is None else key, 0, 1)
        return Loader(
            worker_info.seed - worker_info.id if key is None else key, worker_info.id, worker_info.num_workers
        )

    def _room(self, batch_size: int) -> CacheRoom | None:
        """What the cache limit means here; None if there is none, or nothing is cached."""
        limit_bytes, topology = self.store.limit_bytes, self.ranks.topology()
        if limit_bytes is None:
            return None
        room = self._rooms.get((topology, batch_size))
        if room is None:
            needed = working_set(self.schedule.plan(0, topology, batch_size))
            room = self._rooms[topology, batch_size] = self.store.room(limit_bytes, needed)
        return room

    def _advise(self, batch_size: int) -> None:
        """Warn once of what a user would want to know before a long run."""
        if self._said_once:
            return
        self._said_once = True
        plan, room = self.plan(0, batch_size), self._room(batch_size)
        advice = node_warning(plan) if self.schedule.spec.shuffle else None
        for said in (advice, None if room is None else room.advice):
            if said is not None:
                _log.warning("%s; explain() has the numbers", said)
        left_out = plan.left_out.tolist()
        if any(left_out):
            exact = plan.order.composition is not None
            _log.warning(
                "%s: samples %s are left out of each epoch: %s",
                self.schedule.spec.batches,
                "beside which other streams give too few" if exact else "that fill no whole batch of one stream",
                ", ".join(f"{n} of stream {number}" for number, n in enumerate(left_out) if n),
            )

    # --- where training stands

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that begins next if no state was loaded."""
        return self._ring.next_epoch

    def set_next(self, epoch: Any) -> None:
        """Make `epoch` begin next, from its first sample. Raises OptionError if it is below 0."""
        self._ring.set_next(whole("epoch", epoch, at_least=0, what="an epoch's number"))
        self.announce_start()

    def state(self, n_samples: Any, *, from_beginning: bool) -> dict[str, Any]:
        """The state after `n_samples` samples over all ranks.

        They count from the start of the epoch if `from_beginning`, else from where this run began in it.
        """
        number = whole("num_samples", n_samples, at_least=0, what="a number of samples")
        progress = self._ring.progress()
        consumed = number + (0 if from_beginning else progress.start)
        return self._state(Cursor(max(0, progress.epoch) if consumed else progress.epoch, consumed))

    def _state(self, cursor: Cursor) -> dict[str, Any]:
        """The state at a cursor. A checkpoint never fails a run, so where the world is unusable it leaves that out."""
        try:
            order, n_nodes = self.order(0), self.ranks.world().num_nodes
        except (WorldError, OptionError):  # raised when iteration begins, if it is still so
            order, n_nodes = self.schedule.order(0, Topology.of(1, 1, 1)), None
        return save_state(order, cursor, initial_physical_nodes=n_nodes)

    def load_state(self, state: dict[str, Any], *, accept_other_order: bool) -> None:
        """Make the next epoch begin where the state says, in its order where the settings leave that open.

        Raises StateError if it belongs to another order.
        """
        topology = self.ranks.topology()
        base = self._schedule_of(self.settings, LoadedOrder())
        spec, loaded = spec_of_state(state, base.order(0, topology), base.spec), LoadedOrder()
        schedule = base
        if spec != base.spec:
            loaded = LoadedOrder(True, spec.seed, spec.num_canonical_nodes or 0, spec.shuffle_block_size or 0)
            schedule = self._schedule(self.settings, spec)
        try:
            cursor = load_state(state, schedule.order(0, topology))
        except StateError:
            if not accept_other_order:
                raise
            loaded = LoadedOrder()  # nothing of another order is taken but where it stands
            cursor = load_state(state, base.order(0, topology), accept_other_order=True)
        self._ring.resume_at(cursor.epoch, cursor.consumed, loaded)
        self._use(loaded)
        self.announce_start()

    # --- life

    def close(self) -> None:
        """Give back every file, map, connection and descriptor. Reading and iterating raise ClosedError from now on."""
        self.store.close()
        self._ring.close()

    def __getstate__(self) -> tuple[Any, ...]:
        is_for_process = context.get_spawning_popen() is not None  # any other has no epochs, and no state was loaded
        loaded = self._loaded if is_for_process else LoadedOrder()
        parts = self.store, self._streams, self.defaults, self.settings, self.ranks, self._ring
        return *parts, loaded, self._starter.key

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._open(*state)


def _is_of(given: Any, stream: Stream) -> bool:
    """Whether this is the stream that the dataset was made with, or the dataset's view of it."""
    return given is stream or (isinstance(given, PlacedStream) and given.user is stream)


class _Starter(threading.local):
    """The key of the loader that is starting workers in this thread; a forked worker goes on as that thread."""

    def __init__(self, key: int | None) -> None:
        self.key = key
