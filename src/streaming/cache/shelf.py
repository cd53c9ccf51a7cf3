"""How much lies below some cache folders, and what goes when it is too much: pure, times come in as arguments.

1. What lies there and what is promised to transfers never exceeds the limit; room is promised before a byte moves.
2. Only what may be fetched again may go: never a source, never a file that nobody knows.
3. What somebody holds open stays: deleting it would free nothing.
4. Of the rest goes first what no reader has in its list, the longest unused first; then what is needed last. What is
   needed sooner than the newcomer stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_JUST_CAME_S: Final = 1.0  # for a reader to open what it has waited for
_FULL_S: Final = 0.1
_ORDER_HOLDS_S: Final = 1.0  # how old the order of deletion may be: it is made anew from all files


@dataclass(frozen=True, slots=True)
class Lying:
    """A file on disk."""

    n_bytes: int
    last_use_s: float
    may_go: bool  # it can be fetched again
    came_s: float = float("-inf")  # for somebody who waited for it


@dataclass(frozen=True, slots=True)
class Need:
    """Where a file stands with the readers: its first place in their lists (None: in none), whether one holds it."""

    place: int | None
    is_held: bool


class Shelf:
    """What lies below the cache folders of one fetcher. Not thread-safe: who drives it holds a lock."""

    def __init__(self, need_of: Callable[[str], Need]) -> None:
        """`need_of(path)` is asked for every file that might go."""
        self.limit_bytes: int | None = None
        self._need_of = need_of
        self._files: dict[str, Lying] = {}
        self._promised: dict[str, int] = {}
        self._n_bytes = 0  # of files
        self._n_promised_bytes = 0
        self._changed: dict[str, None] = {}  # paths that came or went since the look around that goes on now
        self._order: list[tuple[tuple[int, float], str]] = []  # heap, first to go first
        self._ordered_s = float("-inf")
        self._full_s = float("-inf")  # when a file that nobody waits for was last refused

    @property
    def n_bytes(self) -> int:
        """On disk and promised."""
        return self._n_bytes + self._n_promised_bytes

    @property
    def n_files(self) -> int:
        """On disk."""
        return len(self._files)

    # --- what lies there

    def put(self, path: str, lying: Lying) -> None:
        """A file is there now."""
        self.remove(path)
        self._files[path] = lying
        self._n_bytes += lying.n_bytes

    def remove(self, path: str) -> None:
        """A file is not there any more."""
        self._changed[path] = None
        known = self._files.pop(path, None)
        if known is not None:
            self._n_bytes -= known.n_bytes

    def used(self, path: str, now_s: float) -> None:
        """A reader named a file that is there."""
        known = self._files.get(path)
        if known is not None:
            self._files[path] = Lying(known.n_bytes, now_s, known.may_go, known.came_s)

    def came(self, path: str, now_s: float) -> None:
        """Somebody who waited for a file is told that it is there, and will open it."""
        known = self._files.get(path)
        if known is not None:
            self._files[path] = Lying(known.n_bytes, now_s, known.may_go, now_s)

    def look_begins(self) -> None:
        """Somebody begins to look at what lies on disk; what changes from now on is not theirs to tell."""
        self._changed = {}

    def look_ends(self, found: Mapping[str, Lying]) -> None:
        """What they found, for all files that have not changed meanwhile."""
        changed = self._changed
        for path in [path for path in self._files if path not in found and path not in changed]:
            self.remove(path)
        for path, lying in found.items():
            known = self._files.get(path)
            if path not in changed and (known is None or known.n_bytes != lying.n_bytes or not known.may_go):
                self.put(path, lying)

    # --- room

    def promise(self, path: str, n_bytes: int, place: int, now_s: float) -> list[str] | None:
        """Room for a file that is needed at this place: the files that must go for it first. None: there is no room.

        The promise stands until `settle`; the files that go are forgotten at once.
        """
        leaving: list[str] = []
        n_over = 0 if self.limit_bytes is None else self.n_bytes + n_bytes - self.limit_bytes
        if n_over > 0:
            # A full cache is asked at every event. What has been refused is refused again without a look, for a moment.
            if place >= 0 and 0 <= now_s - self._full_s < _FULL_S:
                return None
            found = self._leaving(n_over, place, now_s)
            if found is None:
                self._full_s = now_s
                return None
            leaving = found
        self.settle(path)
        self._promised[path] = n_bytes
        self._n_promised_bytes += n_bytes
        return leaving

    def settle(self, path: str) -> None:
        """The transfer of a file has ended, well or not."""
        self._n_promised_bytes -= self._promised.pop(path, 0)

    def free(self, n_bytes: int, place: int, now_s: float) -> list[str]:
        """Files that go because the disk is full, so that `n_bytes` more may fit; as many as there are."""
        return self._leaving(n_bytes, place, now_s, partly=True) or []

    def _leaving(self, n_bytes: int, place: int, now_s: float, *, partly: bool = False) -> list[str] | None:
        """Files that go, `n_bytes` in all; None, and none, if there are not so many."""
        leaving: list[str] = []
        n_left = n_bytes
        is_fresh = False
        while n_left > 0:
            if not self._order or now_s - self._ordered_s > _ORDER_HOLDS_S:
                if is_fresh:
                    break
                self._arrange(now_s)
                is_fresh = True
                continue
            path = heapq.heappop(self._order)[1]
            known = self._files.get(path)
            if known is None or path in leaving or not self._may_go(path, known, place, now_s):
                continue
            leaving.append(path)
            n_left -= known.n_bytes
        if n_left > 0 and not partly:
            self._ordered_s = float("-inf")  # those that could have gone are to be found again
            return None
        for path in leaving:
            self.remove(path)
        return leaving

    def _arrange(self, now_s: float) -> None:
        order = []
        for path, known in self._files.items():
            if known.may_go:
                place = self._need_of(path).place
                order.append(((-1, known.last_use_s) if place is None else (0, -float(place)), path))
        heapq.heapify(order)
        self._order, self._ordered_s = order, now_s

    def _may_go(self, path: str, known: Lying, place: int, now_s: float) -> bool:
        need = self._need_of(path)
        if need.is_held or 0 <= now_s - known.came_s < _JUST_CAME_S:
            return False
        return need.place is None or need.place > place
