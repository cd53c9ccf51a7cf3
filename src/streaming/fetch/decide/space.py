"""Space for files: where the demand of readers meets what lies on disk. Pure: times and scans of the disk come in."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from streaming.cache.ledger import CachedFile, CacheLedger, NextUse, as_prefix, outermost_roots
from streaming.fetch.decide.transfers import URGENT, FileKey, Transfer, TransferLedger

_AFTER_ALL: Final = 1 << 40
"""The place of what takes the space of files that nobody needs, and of no others."""
_LATER: Final = 3
"""A file is evicted for an announced one if it is needed so many times later."""


@dataclass(frozen=True, slots=True)
class JobCaches:
    """What a job says of its caches. `sources` are folders that it reads and that are never written."""

    limit_bytes: int | None
    roots: frozenset[str]
    folders: frozenset[str]
    sources: frozenset[str]


@dataclass(frozen=True, slots=True)
class SpacePlan:
    """What is to be done now: delete `leaving` and report it, then begin `transfers`.

    `without_room` are transfers that have no room, each with the waiters that are no longer subscribed to it.
    `reservations` are those for which something leaves.
    """

    transfers: list[Transfer] = field(default_factory=list)
    without_room: list[tuple[Transfer, list[Any]]] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)
    reservations: list[Hashable] = field(default_factory=list)


class SpaceBudget:
    """Owns the ledger of the files below the roots of jobs with a limit. Its driver holds the lock of the transfers.

    A cache that is smaller than what is in use at once saves fetches by what stays in it. If whatever is needed sooner
    took the space of what is needed later, the cache would always hold just what comes next, and nearly every use of a
    file would fetch it, as under least-recently-used. So an announced file takes only the space of files that are
    needed several times later. In simulations fetches are then 1.2 times the least possible, at the same speed.
    """

    def __init__(self, transfers: TransferLedger[Transfer]) -> None:
        self._transfers = transfers
        self._cache = CacheLedger(self._next_use_of)
        self._jobs: dict[str, JobCaches] = {}
        self._in_force: set[str] = set()  # jobs whose limit holds
        self._roots: tuple[str, ...] = ()  # that count, with a slash at the end
        self._moving: dict[FileKey, Transfer] = {}
        self._keys: dict[str, FileKey] = {}  # path → a file to which somebody subscribes, or that is held
        self._fetched: set[str] = set()  # files that count and came through us, index or no index
        self.n_evicted = 0

    # --- jobs

    def admit(self, job: str, caches: JobCaches, now_s: float) -> bool:
        """A job has connected. Whether its limit is yet to be set, after a scan of what lies there."""
        if job not in self._jobs:
            self._jobs[job] = caches
            self._count(now_s)
        return caches.limit_bytes is not None and job not in self._in_force

    def limit(self, job: str) -> None:
        """What lies below the roots of this job is known now. The smallest limit of all jobs holds."""
        if job in self._jobs:
            self._in_force.add(job)
            self._set_limit()

    def is_in_force(self, job: str) -> bool:
        """Whether the limit of this job has been set."""
        return job in self._in_force

    def lift(self, job: str, now_s: float) -> None:
        """A job has gone."""
        self._jobs.pop(job, None)
        self._in_force.discard(job)
        self._set_limit()
        self._count(now_s)

    @property
    def is_limited(self) -> bool:
        """Whether any job has set a limit."""
        return bool(self._roots)

    @property
    def n_bytes(self) -> int:
        """Bytes on disk and reserved below the roots that count."""
        return self._cache.n_bytes

    @property
    def roots(self) -> list[str]:
        """The roots that count."""
        return [root.rstrip("/") or "/" for root in self._roots]

    @property
    def copies(self) -> frozenset[str]:
        """Folders in which jobs with a limit keep copies of remotes, whether these say so or not."""
        return frozenset().union(*(each.folders for each in self._jobs.values() if each.limit_bytes is not None))

    @property
    def sources(self) -> frozenset[str]:
        """Folders from which nothing may be deleted."""
        return frozenset().union(*(caches.sources for caches in self._jobs.values()))

    # --- space

    def begin(self, now_s: float) -> SpacePlan:
        """Take what begins now, as far as there is space for it, and what must leave for it."""
        for key in self._transfers.changed():
            self._note(cast(FileKey, key))
        plan = SpacePlan()

        def has_room(transfer: Transfer, place: int) -> bool:
            if not self._roots:  # nothing counts, so nothing is reserved
                self._moving[transfer.key] = transfer
                return True
            until = place if place == URGENT else place * _LATER
            found = self._cache.reserve(transfer.key, self._counted_bytes(transfer), until, now_s)
            if found is None:
                return False
            self._moving[transfer.key] = transfer
            self._leave(plan, transfer.key, found)
            return True

        taken = self._transfers.take(has_room)
        plan.transfers.extend(taken.begun)
        plan.without_room.extend(taken.without_room)
        if self._roots:
            excess = object()
            self._leave(plan, excess, self._cache.evict_excess(excess, now_s))
        return plan

    def gone(self, plan: SpacePlan) -> None:
        """What had to leave has been deleted."""
        for reservation in plan.reservations:
            self._cache.evicted(reservation)

    def sized(self, key: FileKey, n_bytes: int, now_s: float) -> SpacePlan | None:
        """Reserve space for a transfer whose size has just become known.

        Returns what must leave before it goes on, or None if there is no space.
        """
        if not self._counts(key.path):
            return SpacePlan()
        return self._reserve(key, n_bytes, URGENT, now_s)

    def used(self, key: FileKey, now_s: float) -> None:
        """A client has waited for this file, which is on disk, and will open it in a moment."""
        if self._roots:
            self._cache.used(key.path, now_s, was_awaited=True)

    def opened(self, key: FileKey) -> None:
        """The client that waited for this file has opened it."""
        if self._roots:
            self._cache.opened(key.path)

    def held(self, key: FileKey, now_s: float) -> None:
        """A reader has this file open, or will soon."""
        if self._roots:
            self._cache.used(key.path, now_s)

    def ended(self, transfer: Transfer, now_s: float, *, n_came: int) -> None:
        """A transfer ended with the file on disk; `n_came` is its size if that was unknown. -1: it is not on disk."""
        self._moving.pop(transfer.key, None)
        self._cache.release(transfer.key)
        if n_came < 0 or not self._counts(transfer.path):
            return
        file = transfer.file
        n_bytes = file.n_bytes if file.n_bytes >= 0 else n_came
        self._came(transfer.path, n_bytes, now_s, may_go=file.n_bytes >= 0 or not transfer.config.has_index)
        if transfer.config.keep_zip and file.zip_name is not None:
            self._came(posixpath.join(transfer.key.local, file.zip_name), file.zip_bytes, now_s)

    def begin_table(self, path: str, n_bytes: int, now_s: float) -> SpacePlan | None:
        """Reserve space for an offset table, to be placed when what leaves has been deleted. None: there is none."""
        return self._reserve(path, n_bytes if self._counts(path) else 0, _AFTER_ALL, now_s)

    def table_ended(self, path: str, n_bytes: int, now_s: float) -> None:
        """An offset table was placed; -1: it was not."""
        self._cache.release(path)
        if n_bytes >= 0 and self._counts(path):
            self._came(path, n_bytes, now_s)

    def why_full(self) -> str:
        """Why there is no space, for messages."""
        fixed, limit = self._cache.n_unevictable_bytes, self._cache.limit_bytes
        others = f", {fixed:,} of them in files that are no copies and stay" if fixed else ""
        return (
            f"{self.n_bytes:,} of {limit or 0:,} bytes are taken{others}, and what may go is needed sooner or is in use"
        )

    def free(self, transfer: Transfer, found: Mapping[str, CachedFile], now_s: float) -> list[str]:
        """The files among those `found` that are to be deleted because the disk is full.

        Folders of jobs without a limit are left alone, since their demand is not known.
        """
        spared = tuple(
            as_prefix(folder)
            for caches in self._jobs.values()
            if caches.limit_bytes is None
            for folder in caches.folders
        )
        disk = CacheLedger(lambda path: NextUse(None, True) if path.startswith(spared) else self._next_use_of(path))
        for path, file in found.items():
            disk.put(path, replace(file, is_evictable=file.is_evictable or path in self._fetched))
        place = self._transfers.demand_for(transfer.key).place
        return disk.evict(transfer.key, transfer.disk_bytes, URGENT if place is None else place, now_s)

    def freed(self, paths: Collection[str]) -> None:
        """These have been deleted."""
        for path in paths:
            self._cache.remove(path)
        self._evicted(paths)

    # --- scans of the disk

    def scan_begins(self) -> None:
        """A scan below `roots` begins."""
        self._cache.begin_scan()

    def scan_ends(self, found: Mapping[str, CachedFile], unseen: Collection[str], sources: Collection[str]) -> None:
        """A scan has ended. `unseen`: folders that could not be read; `sources`: folders, as they were found."""
        ours = {path for path in self._fetched if path in found and posixpath.dirname(path) not in sources}
        self._cache.end_scan(
            {path: replace(file, is_evictable=True) if path in ours else file for path, file in found.items()}, unseen
        )
        self._fetched = {path for path in self._fetched if path in self._cache}

    # --- internals

    def _set_limit(self) -> None:
        limits = [caches.limit_bytes for job, caches in self._jobs.items() if job in self._in_force]
        self._cache.limit_bytes = min((limit for limit in limits if limit is not None), default=None)

    def _count(self, now_s: float) -> None:
        """The roots that count may have changed: those of jobs with a limit, in force or yet to be set."""
        limited = [caches for caches in self._jobs.values() if caches.limit_bytes is not None]
        before = self._roots
        self._roots = tuple(map(as_prefix, outermost_roots({root for caches in limited for root in caches.roots})))
        if not self._roots:
            self._cache.clear()
            self._fetched.clear()
        if self._roots == before:
            return
        for transfer in self._moving.values():
            self._cache.resize(transfer.key, self._counted_bytes(transfer))

    def _reserve(self, reservation: Hashable, n_bytes: int, until: int, now_s: float) -> SpacePlan | None:
        """Reserve space for one thing that begins once what leaves has been deleted. None: there is none."""
        found = self._cache.reserve(reservation, n_bytes, until, now_s)
        if found is None:
            return None
        plan = SpacePlan()
        self._leave(plan, reservation, found)
        return plan

    def _leave(self, plan: SpacePlan, reservation: Hashable, paths: Collection[str]) -> None:
        if paths:
            plan.leaving.extend(paths)
            plan.reservations.append(reservation)
            self._evicted(paths)

    def _counts(self, path: str) -> bool:
        return bool(self._roots) and path.startswith(self._roots)

    def _counted_bytes(self, transfer: Transfer) -> int:
        return transfer.disk_bytes if self._counts(transfer.path) else 0

    def _came(self, path: str, n_bytes: int, now_s: float, *, may_go: bool = True) -> None:
        self._cache.put(path, CachedFile(n_bytes, now_s, may_go))
        if may_go:
            self._fetched.add(path)

    def _evicted(self, paths: Collection[str]) -> None:
        self.n_evicted += len(paths)
        for path in paths:
            self._fetched.discard(path)
            if (key := self._keys.get(path)) is not None:
                self._transfers.evicted(key)

    def _note(self, key: FileKey) -> None:
        """Remember by its path a file that readers need, and what that means for the file that lies there."""
        demand = self._transfers.demand_for(key)
        if demand.place is not None or demand.is_held:
            self._keys[key.path] = key
        elif self._keys.get(key.path) == key:
            del self._keys[key.path]
        if self._roots:
            self._cache.next_use_changed(key.path)

    def _next_use_of(self, path: str) -> NextUse:
        key = self._keys.get(path)
        if key is None:
            return NextUse(None, False)
        demand = self._transfers.demand_for(key)
        return NextUse(demand.place, demand.is_held)
