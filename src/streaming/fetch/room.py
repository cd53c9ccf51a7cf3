"""Room for files: where what readers need meets what lies on disk. Pure: times and looks at the disk come in."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from streaming.cache.inventory import outermost_roots
from streaming.cache.ledger import CachedFile, CacheLedger, NextUse, as_prefix
from streaming.fetch.policy import URGENT, FetchPolicy
from streaming.fetch.protocol import Hello
from streaming.fetch.task import FileTask
from streaming.storage.url import Folder, parse_remote

_AFTER_ALL: Final = 1 << 40  # the place of what takes the room of files that nobody needs, and of no others
_LATER: Final = 3  # times as far away as the newcomer is what goes for it


@dataclass(frozen=True, slots=True)
class Tenant:
    """What a job says of its caches. `sources`: folders that it reads and that are never written, links resolved."""

    limit_bytes: int | None
    roots: frozenset[str]
    folders: frozenset[str]
    sources: frozenset[str]

    @classmethod
    def of(cls, hello: Hello) -> Tenant:
        """The tenant that greets; looks at links."""
        remotes = [parse_remote(config.remote) for config in hello.streams]
        return cls(
            hello.cache_limit if hello.cache_limit >= 0 else None,
            frozenset(config.root or config.local for config in hello.streams),
            frozenset(config.local for config in hello.streams),
            frozenset(os.path.realpath(remote.path) for remote in remotes if isinstance(remote, Folder)),
        )


@dataclass(frozen=True, slots=True)
class Begun:
    """What is to be done now: delete `leaving` and say so, then move `tasks`; `without_room` are waited for in vain."""

    tasks: list[FileTask]
    without_room: list[FileTask]
    leaving: list[str]
    promises: list[Hashable]  # for which something leaves


class Room:
    """Owns the ledger: which files lie below the roots of jobs with a limit. Who drives it holds the policy's lock.

    A cache that is smaller than what is in use at once saves fetches by what stays in it. If whatever is needed sooner
    took the room of what is needed later, the cache would always hold just what comes next, and nearly every use of a
    file would fetch it, as if the longest unused went. So what is announced takes the room only of what is needed
    several times later; in simulations fetches are then 1.2 times the least that there can be, at the same speed.
    """

    def __init__(self, policy: FetchPolicy[FileTask]) -> None:
        self._policy = policy
        self._ledger = CacheLedger(self._next_use_of)
        self._tenants: dict[str, Tenant] = {}
        self._in_force: set[str] = set()  # jobs whose limit holds
        self._roots: tuple[str, ...] = ()  # that count, with a slash at the end
        self._moving: set[FileTask] = set()
        self._tasks: dict[str, FileTask] = {}  # path → what a reader has in its list, holds or waits for
        self._fetched: set[str] = set()  # what counts and came through us, index or no index
        self.n_evicted = 0

    # --- jobs

    def admit(self, job: str, tenant: Tenant, now_s: float) -> bool:
        """A connection of a job. Whether its limit is yet to be set, after a look at what lies there."""
        if job not in self._tenants:
            self._tenants[job] = tenant
            self._count(now_s)
        return tenant.limit_bytes is not None and job not in self._in_force

    def limit(self, job: str) -> None:
        """What lies below the roots of this job is known now. The smallest limit of all jobs holds."""
        if job in self._tenants:
            self._in_force.add(job)
            self._set_limit()

    def is_in_force(self, job: str) -> bool:
        """Whether the limit of this job has been set."""
        return job in self._in_force

    def lift(self, job: str, now_s: float) -> None:
        """A job has gone."""
        self._tenants.pop(job, None)
        self._in_force.discard(job)
        self._set_limit()
        self._count(now_s)

    @property
    def is_limited(self) -> bool:
        """Whether any job set a limit."""
        return bool(self._roots)

    @property
    def n_bytes(self) -> int:
        """What lies on disk and is promised, below the roots that count."""
        return self._ledger.n_bytes

    @property
    def roots(self) -> list[str]:
        """The roots that count."""
        return [root.rstrip("/") or "/" for root in self._roots]

    @property
    def copies(self) -> frozenset[str]:
        """Folders in which jobs with a limit keep copies of remotes, whether these say so or not."""
        return frozenset().union(*(each.folders for each in self._tenants.values() if each.limit_bytes is not None))

    @property
    def sources(self) -> frozenset[str]:
        """Folders from which nothing may be deleted, links resolved."""
        return frozenset().union(*(tenant.sources for tenant in self._tenants.values()))

    # --- room

    def begin(self, now_s: float) -> Begun:
        """What begins now, as far as there is room for it, and what must go for it."""
        for task in self._policy.changed():
            self._note(task)
        leaving: list[str] = []
        promises: list[Hashable] = []

        def has_room(task: FileTask, place: int) -> bool:
            until = place if place == URGENT else place * _LATER
            found = self._ledger.reserve(task, self._counted_bytes(task), until, now_s)
            if found is None:
                return False
            self._moving.add(task)
            if found:
                leaving.extend(found)
                promises.append(task)
                self._evicted(found)
            return True

        taken = self._policy.take(has_room)
        excess = object()
        if shrunk := self._ledger.evict_excess(excess, now_s):
            leaving += shrunk
            promises.append(excess)
            self._evicted(shrunk)
        return Begun(taken.begun, taken.without_room, leaving, promises)

    def gone(self, begun: Begun) -> None:
        """What had to leave has been deleted."""
        for promise in begun.promises:
            self._ledger.evicted(promise)

    def sized(self, task: FileTask, n_bytes: int, now_s: float) -> Begun | None:
        """A file that moves is so large, which nobody knew before: what must go before it goes on. None: no room."""
        if not self._counts(task.path):
            return Begun([], [], [], [])
        return self._promised(task, n_bytes, URGENT, now_s)

    def used(self, task: FileTask, now_s: float) -> None:
        """Somebody has waited for this file, which is there."""
        self._ledger.used(task.path, now_s, was_awaited=True)

    def opened(self, task: FileTask) -> None:
        """Who has waited for this file has it open by now."""
        self._ledger.opened(task.path)

    def held(self, task: FileTask, now_s: float) -> None:
        """A reader has this file open, or will soon."""
        self._ledger.used(task.path, now_s)

    def ended(self, task: FileTask, now_s: float, *, n_came: int) -> None:
        """A transfer ended, and the file is there: `n_came` bytes as far as nobody knew before. -1: it is not there."""
        self._moving.discard(task)
        self._ledger.release(task)
        if n_came < 0 or not self._counts(task.path):
            return
        need = task.need
        n_bytes = need.n_bytes if need.n_bytes >= 0 else n_came
        self._came(task.path, n_bytes, now_s, may_go=need.n_bytes >= 0 or not task.config.has_index)
        if task.config.keep_zip and need.zip_name is not None:
            self._came(os.path.join(task.local, need.zip_name), need.zip_bytes, now_s)

    def begin_table(self, path: str, n_bytes: int, now_s: float) -> Begun | None:
        """Room for an offset table, to be placed when what leaves has been deleted. None: there is none."""
        return self._promised(path, n_bytes if self._counts(path) else 0, _AFTER_ALL, now_s)

    def table_ended(self, path: str, n_bytes: int, now_s: float) -> None:
        """An offset table was placed; -1: it was not."""
        self._ledger.release(path)
        if n_bytes >= 0 and self._counts(path):
            self._came(path, n_bytes, now_s)

    def why_full(self) -> str:
        """Why there is no room, for people."""
        fixed, limit = self._ledger.n_unevictable_bytes, self._ledger.limit_bytes
        others = f", {fixed:,} of them in files that are no copies and stay" if fixed else ""
        return (
            f"{self.n_bytes:,} of {limit or 0:,} bytes are taken{others}, and what may go is needed sooner or is in use"
        )

    def free(self, task: FileTask, found: Mapping[str, CachedFile], now_s: float) -> list[str]:
        """What is to be deleted of all that was `found`, because the disk is full.

        Folders of jobs without a limit are left alone: what these need is not known.
        """
        spared = tuple(
            as_prefix(folder)
            for tenant in self._tenants.values()
            if tenant.limit_bytes is None
            for folder in tenant.folders
        )
        disk = CacheLedger(lambda path: NextUse(None, True) if path.startswith(spared) else self._next_use_of(path))
        for path, file in found.items():
            disk.put(path, replace(file, is_evictable=file.is_evictable or path in self._fetched))
        place = self._policy.standing(task).place
        return disk.evict(task, task.disk_bytes, URGENT if place is None else place, now_s)

    def freed(self, paths: Collection[str]) -> None:
        """These have been deleted."""
        for path in paths:
            self._ledger.remove(path)
        self._evicted(paths)

    # --- looks at the disk

    def look_begins(self) -> None:
        """Somebody begins to look below `roots`."""
        self._ledger.begin_scan()

    def look_ends(self, found: Mapping[str, CachedFile], unseen: Collection[str], sources: Collection[str]) -> None:
        """What they found there; `unseen`: folders that could not be read; `sources`: folders, as they were found."""
        ours = {path for path in self._fetched if path in found and os.path.dirname(path) not in sources}
        self._ledger.end_scan(
            {path: replace(file, is_evictable=True) if path in ours else file for path, file in found.items()}, unseen
        )
        self._fetched = {path for path in self._fetched if path in self._ledger}

    # --- inside

    def _set_limit(self) -> None:
        limits = [tenant.limit_bytes for job, tenant in self._tenants.items() if job in self._in_force]
        self._ledger.limit_bytes = min((limit for limit in limits if limit is not None), default=None)

    def _count(self, now_s: float) -> None:
        """Which roots count may have changed: of jobs with a limit, in force or yet to be set."""
        limited = [tenant for tenant in self._tenants.values() if tenant.limit_bytes is not None]
        before = self._roots
        self._roots = tuple(map(as_prefix, outermost_roots({root for tenant in limited for root in tenant.roots})))
        if not self._roots:
            self._ledger.clear()
            self._fetched.clear()
        if self._roots == before:
            return
        for task in self._moving:
            self._ledger.resize(task, self._counted_bytes(task))

    def _promised(self, key: Hashable, n_bytes: int, until: int, now_s: float) -> Begun | None:
        """Room for one thing that begins, once what leaves has been deleted. None: there is none."""
        found = self._ledger.reserve(key, n_bytes, until, now_s)
        if found is None:
            return None
        self._evicted(found)
        return Begun([], [], found, [key] if found else [])

    def _counts(self, path: str) -> bool:
        return bool(self._roots) and path.startswith(self._roots)

    def _counted_bytes(self, task: FileTask) -> int:
        return task.disk_bytes if self._counts(task.path) else 0

    def _came(self, path: str, n_bytes: int, now_s: float, *, may_go: bool = True) -> None:
        self._ledger.put(path, CachedFile(n_bytes, now_s, may_go))
        if may_go:
            self._fetched.add(path)

    def _evicted(self, paths: Collection[str]) -> None:
        self.n_evicted += len(paths)
        for path in paths:
            self._fetched.discard(path)
            if (task := self._tasks.get(path)) is not None:
                self._policy.evicted(task)

    def _note(self, task: FileTask) -> None:
        """Remember by its path what readers need, and what that means for the file that lies there."""
        path, standing = task.path, self._policy.standing(task)
        if standing.place is not None or standing.is_held:
            self._tasks[path] = task
        elif self._tasks.get(path) == task:
            del self._tasks[path]
        self._ledger.next_use_changed(path)

    def _next_use_of(self, path: str) -> NextUse:
        task = self._tasks.get(path)
        if task is None:
            return NextUse(None, False)
        standing = self._policy.standing(task)
        return NextUse(standing.place, standing.is_held)
