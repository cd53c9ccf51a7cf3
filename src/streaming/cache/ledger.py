"""Counts the bytes below cache folders, and chooses what to evict for a limit. Pure: times come in as arguments.

1. The files on disk, the files being evicted and the reservations of transfers never exceed the limit together. Room is
   reserved before a byte moves, and a victim takes its room until it has been deleted.
2. Only a file that can be fetched again is evicted: never a source, never a file of unknown origin.
3. A pinned file stays, since a reader has it open and deleting it would free nothing. So does a file that a reader has
   waited for, until it is opened or a grace period ends.
4. Of the other files those in no reader's list go first, the longest unused before the others. Then go those of the
   latest next use. A file stays whose next use is as soon as the newcomer's, or sooner.

An event costs O(log n): the caller names the files whose next use has changed, and no others are considered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

_GRACE_S: Final = 1.0
_UNANNOUNCED: Final = 0  # in no reader's list: evicted first
_ANNOUNCED: Final = 1

T = TypeVar("T", bound=Any)
R = TypeVar("R", bound=Any)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file on disk. `is_evictable`: it may be deleted, since it can be fetched again."""

    n_bytes: int
    last_use_s: float
    is_evictable: bool


@dataclass(frozen=True, slots=True)
class NextUse:
    """A file's first place in the readers' lists (None: it is in none), and whether a reader has it pinned."""

    place: int | None
    is_pinned: bool


@dataclass(slots=True)
class _Reservation:
    """Room for a transfer, perhaps none, and the victims that make this room and may not have been deleted yet."""

    n_bytes: int
    victims: dict[str, int] = field(default_factory=dict)  # path → bytes

    @property
    def n_taken_bytes(self) -> int:
        """The room that it takes now: the transfer begins when all victims have been deleted."""
        return max(self.n_bytes, sum(self.victims.values()))


def as_prefix(folder: str) -> str:
    """The beginning that the paths of all files below a folder have in common."""
    return folder.rstrip("/") + "/"


def outermost_roots(roots: Collection[str]) -> list[str]:
    """The roots that lie in no other root, so that each file is counted once."""
    kept: list[str] = []
    for root in sorted(roots):
        if not any(root == other or root.startswith(as_prefix(other)) for other in kept):
            kept.append(root)
    return kept


class CacheLedger:
    """The files below the cache folders of one fetcher. Not thread-safe: its caller holds a lock."""

    def __init__(self, next_use_of: Callable[[str], NextUse]) -> None:
        """`next_use_of(path)` is called when a file comes, and when `next_use_changed` names it."""
        self.limit_bytes: int | None = None
        self._next_use_of = next_use_of
        self._files: dict[str, CachedFile] = {}
        self._n_file_bytes = 0
        self._n_unevictable_bytes = 0
        self._reservations: dict[Hashable, _Reservation] = {}
        self._n_reserved_bytes = 0  # taken by reservations
        self._changed: set[str] | None = None  # paths that came or went since the running scan began
        self._candidates: Ranking[str, tuple[int, float]] = Ranking()  # files that can be evicted now, first one first
        self._awaited: dict[str, float] = {}  # files in their grace period → since when, in this order

    @property
    def n_bytes(self) -> int:
        """Bytes on disk and reserved."""
        return self._n_file_bytes + self._n_reserved_bytes

    @property
    def n_unevictable_bytes(self) -> int:
        """Bytes in files that must not be evicted."""
        return self._n_unevictable_bytes

    def __contains__(self, path: str) -> bool:
        return path in self._files

    # --- files

    def put(self, path: str, file: CachedFile) -> None:
        """Enter a file that is on disk now."""
        self.remove(path)
        self._files[path] = file
        self._n_file_bytes += file.n_bytes
        self._n_unevictable_bytes += 0 if file.is_evictable else file.n_bytes
        self._rank(path)

    def remove(self, path: str) -> None:
        """Strike a file that is not on disk any more."""
        if self._changed is not None:
            self._changed.add(path)
        known = self._files.pop(path, None)
        if known is not None:
            self._n_file_bytes -= known.n_bytes
            self._n_unevictable_bytes -= 0 if known.is_evictable else known.n_bytes
        self._awaited.pop(path, None)
        self._candidates.drop(path)

    def used(self, path: str, now_s: float, *, was_awaited: bool = False) -> None:
        """A reader uses a file that is on disk; `was_awaited`: it has waited for it, and will open it in a moment."""
        known = self._files.get(path)
        if known is None:
            return
        self._files[path] = CachedFile(known.n_bytes, now_s, known.is_evictable)
        if was_awaited:
            self._awaited.pop(path, None)
            self._awaited[path] = now_s
        self._rank(path)

    def opened(self, path: str) -> None:
        """The reader that waited for this file has opened it: its grace period ends."""
        if self._awaited.pop(path, None) is not None:
            self._rank(path)

    def next_use_changed(self, path: str) -> None:
        """`next_use_of` may answer something else for this file than before."""
        self._rank(path)

    def begin_scan(self) -> None:
        """A scan of the disk begins. What it finds of files that change from now on is out of date."""
        self._changed = set()

    def end_scan(self, found: Mapping[str, CachedFile], unreadable: Collection[str] = ()) -> None:
        """Take over what the scan found of files that have not changed meanwhile.

        Files of folders that were `unreadable` stay as they are known.
        """
        changed = (self._changed or set()) | self._all_victims()
        self._changed = None
        hidden = tuple(map(as_prefix, unreadable))
        for path in [path for path in self._files if path not in found]:
            if path not in changed and not path.startswith(hidden):
                self.remove(path)
        for path, file in found.items():
            known = self._files.get(path)
            if path not in changed and (
                known is None or (known.n_bytes, known.is_evictable) != (file.n_bytes, file.is_evictable)
            ):
                self.put(path, file)

    def clear(self) -> None:
        """Forget all files. Reservations stay."""
        for path in list(self._files):
            self.remove(path)

    # --- room

    def reserve(self, key: Hashable, n_bytes: int, place: int, now_s: float) -> list[str] | None:
        """Reserve room for a newcomer that is needed at `place`. Returns what to evict first; None: there is no room.

        The reservation stands until `release(key)`. Its victims are struck at once, and take their room until
        `evicted(key)`; the transfer must not begin before.
        """
        before = self._reservations.get(key)
        victims: dict[str, int] = {}
        if self.limit_bytes is not None:
            n_over = self.n_bytes - (before.n_taken_bytes if before else 0) + n_bytes - self.limit_bytes
            found = self._strike_victims(n_over, place, now_s)
            if found is None:
                return None
            victims = found
        self.release(key)
        self._keep(key, _Reservation(n_bytes, victims))
        return list(victims)

    def resize(self, key: Hashable, n_bytes: int) -> None:
        """Set the room that a running transfer takes, whatever the limit."""
        known = self._reservations.get(key)
        self.release(key)
        self._keep(key, _Reservation(n_bytes, known.victims if known else {}))

    def release(self, key: Hashable) -> None:
        """End a reservation: the transfer has ended, well or not."""
        known = self._reservations.pop(key, None)
        if known is None:
            return
        self._n_reserved_bytes -= known.n_taken_bytes
        if self._changed is not None:
            self._changed.update(known.victims)

    def evict(self, key: Hashable, n_bytes: int, place: int, now_s: float) -> list[str]:
        """Choose files to evict until `n_bytes` are free, or none is left; they take their room until `evicted(key)`.

        `place` as for `reserve`.
        """
        victims = self._strike_victims(n_bytes, place, now_s, partly=True) or {}
        self.release(key)
        self._keep(key, _Reservation(0, victims))
        return list(victims)

    def evict_excess(self, key: Hashable, now_s: float) -> list[str]:
        """Choose files to evict until the limit holds: the cache was filled without one, or by others."""
        if self.limit_bytes is None or self.n_bytes <= self.limit_bytes:
            return []
        n_staying = self._n_file_bytes + sum(reservation.n_bytes for reservation in self._reservations.values())
        return self.evict(key, n_staying - self.limit_bytes, -1, now_s)

    def evicted(self, key: Hashable) -> None:
        """The victims of this reservation have been deleted."""
        known = self._reservations.get(key)
        if known is None or not known.victims:
            return
        self.release(key)
        self._keep(key, _Reservation(known.n_bytes))

    # --- inside

    def _keep(self, key: Hashable, reservation: _Reservation) -> None:
        if reservation.n_bytes or reservation.victims:
            self._reservations[key] = reservation
            self._n_reserved_bytes += reservation.n_taken_bytes

    def _all_victims(self) -> set[str]:
        return {path for reservation in self._reservations.values() for path in reservation.victims}

    def _strike_victims(self, n_bytes: int, place: int, now_s: float, *, partly: bool = False) -> dict[str, int] | None:
        """Strike files of `n_bytes` in all. None, and nothing is struck, if there are not enough and not `partly`."""
        self._end_grace_periods(now_s)
        taken: list[tuple[str, tuple[int, float]]] = []
        n_left = n_bytes
        while n_left > 0 and (first := self._candidates.first()) is not None:
            path, (kind, rank) = first
            if kind == _ANNOUNCED and -rank <= place:
                break
            self._candidates.drop(path)
            taken.append(first)
            n_left -= self._files[path].n_bytes
        if n_left > 0 and not partly:
            for path, key in taken:
                self._candidates.put(path, key)
            return None
        victims = {path: self._files[path].n_bytes for path, _ in taken}
        for path in victims:
            self.remove(path)
        return victims

    def _end_grace_periods(self, now_s: float) -> None:
        """End the grace periods that are over, also when the clock was put back."""
        while self._awaited:
            path, since_s = next(iter(self._awaited.items()))
            if 0 <= now_s - since_s < _GRACE_S:
                break
            del self._awaited[path]
            self._rank(path)

    def _rank(self, path: str) -> None:
        """Find the place of a file among the candidates for eviction, if it is one."""
        known = self._files.get(path)
        if known is None:
            return
        if not known.is_evictable or path in self._awaited:
            self._candidates.drop(path)
            return
        next_use = self._next_use_of(path)
        if next_use.is_pinned:
            self._candidates.drop(path)
        elif next_use.place is None:
            self._candidates.put(path, (_UNANNOUNCED, known.last_use_s))
        else:
            self._candidates.put(path, (_ANNOUNCED, -next_use.place))


class Ranking(Generic[T, R]):
    """Things by rank, the lowest first; O(log n) a call on average. Things and ranks can be compared and hashed."""

    def __init__(self) -> None:
        self._ranks: dict[T, R] = {}
        self._heap: list[tuple[R, T]] = []  # with entries of ranks that no longer hold

    def put(self, thing: T, rank: R) -> None:
        """Give the thing this rank, in place of any other."""
        if self._ranks.get(thing) == rank:
            return
        self._ranks[thing] = rank
        heapq.heappush(self._heap, (rank, thing))
        if len(self._heap) > 64 + 2 * len(self._ranks):
            self._heap = [(rank, thing) for thing, rank in self._ranks.items()]
            heapq.heapify(self._heap)

    def drop(self, thing: T) -> None:
        """Take the thing out."""
        self._ranks.pop(thing, None)

    def first(self) -> tuple[T, R] | None:
        """The thing of the lowest rank, and its rank; None if there is none."""
        while self._heap:
            rank, thing = self._heap[0]
            if self._ranks.get(thing) == rank:
                return thing, rank
            heapq.heappop(self._heap)
        return None
