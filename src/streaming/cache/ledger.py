"""How much lies below some cache folders, and what goes when it is too much: pure, times come in as arguments.

1. What lies there, what is going and what is promised to transfers never exceeds the limit. Room is promised before a
   byte moves, and what goes takes its room until it has gone.
2. Only what may be fetched again may go: never a source, never a file that nobody knows.
3. What somebody holds open stays (deleting it would free nothing), and what somebody has waited for until it is opened,
   or for a moment if nobody says so.
4. Of the rest goes first what no reader has in its list, the longest unused first; then what is needed last. What is
   needed sooner than the newcomer, or as soon, stays.

An event costs O(log n): who drives the shelf says which needs have changed, and no file is looked at otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from streaming.cache.ranking import Ranking

_JUST_USED_S: Final = 1.0
_NOBODY: Final = 0  # needs it: these go first
_SOMEBODY: Final = 1


@dataclass(frozen=True, slots=True)
class Lying:
    """A file on disk."""

    n_bytes: int
    last_use_s: float
    may_go: bool  # it can be fetched again


@dataclass(frozen=True, slots=True)
class Need:
    """Where a file stands with the readers: its first place in their lists (None: in none), whether one holds it."""

    place: int | None
    is_held: bool


@dataclass(slots=True)
class _Promise:
    """Room for a transfer, or for nothing, and the files that go for it and may not have gone yet."""

    n_bytes: int
    leaving: dict[str, int] = field(default_factory=dict)  # path → bytes

    @property
    def n_taken(self) -> int:
        """What it takes: the transfer begins when all that goes for it has gone."""
        return max(self.n_bytes, sum(self.leaving.values()))


def as_prefix(folder: str) -> str:
    """What the paths of all files below a folder begin with."""
    return folder.rstrip("/") + "/"


class CacheLedger:
    """What lies below the cache folders of one fetcher. Not thread-safe: who drives it holds a lock."""

    def __init__(self, need_of: Callable[[str], Need]) -> None:
        """`need_of(path)` is asked when `needs_changed` says so, and when a file comes."""
        self.limit_bytes: int | None = None
        self._need_of = need_of
        self._files: dict[str, Lying] = {}
        self._n_bytes = 0  # of files
        self._n_fixed_bytes = 0  # of those that may not go
        self._promises: dict[Hashable, _Promise] = {}
        self._n_taken = 0  # by promises
        self._changed: set[str] | None = None  # paths that came or went since the look that goes on now
        self._order: Ranking[str, tuple[int, float]] = Ranking()  # of what may go now, first to go first
        self._just_used: dict[str, float] = {}  # path → when, in the order of use

    @property
    def n_bytes(self) -> int:
        """On disk and promised."""
        return self._n_bytes + self._n_taken

    @property
    def n_fixed_bytes(self) -> int:
        """Of files that nothing may delete."""
        return self._n_fixed_bytes

    def __contains__(self, path: str) -> bool:
        return path in self._files

    # --- what lies there

    def put(self, path: str, lying: Lying) -> None:
        """A file is there now."""
        self.remove(path)
        self._files[path] = lying
        self._n_bytes += lying.n_bytes
        self._n_fixed_bytes += 0 if lying.may_go else lying.n_bytes
        self._rank(path)

    def remove(self, path: str) -> None:
        """A file is not there any more."""
        if self._changed is not None:
            self._changed.add(path)
        known = self._files.pop(path, None)
        if known is not None:
            self._n_bytes -= known.n_bytes
            self._n_fixed_bytes -= 0 if known.may_go else known.n_bytes
        self._just_used.pop(path, None)
        self._order.drop(path)

    def used(self, path: str, now_s: float, *, just_now: bool = False) -> None:
        """A reader has a file that is there; `just_now`: has waited for it, and will open it in a moment."""
        known = self._files.get(path)
        if known is None:
            return
        self._files[path] = Lying(known.n_bytes, now_s, known.may_go)
        if just_now:
            self._just_used.pop(path, None)
            self._just_used[path] = now_s
        self._rank(path)

    def opened(self, path: str) -> None:
        """Who has waited for this file has it by now."""
        if self._just_used.pop(path, None) is not None:
            self._rank(path)

    def need_changed(self, path: str) -> None:
        """What `need_of` answers for this file may be another than before."""
        self._rank(path)

    def look_begins(self) -> None:
        """Somebody begins to look at what lies on disk; what changes from now on is not theirs to tell."""
        self._changed = set()

    def look_ends(self, found: Mapping[str, Lying], unseen: Collection[str] = ()) -> None:
        """What they found, for all files that have not changed meanwhile; nothing of folders that were `unseen`."""
        changed = (self._changed or set()) | self._leaving()
        self._changed = None
        hidden = tuple(map(as_prefix, unseen))
        for path in [path for path in self._files if path not in found]:
            if path not in changed and not path.startswith(hidden):
                self.remove(path)
        for path, lying in found.items():
            known = self._files.get(path)
            if path not in changed and (
                known is None or (known.n_bytes, known.may_go) != (lying.n_bytes, lying.may_go)
            ):
                self.put(path, lying)

    def clear(self) -> None:
        """Nothing of what lies there is to be known any more; what is promised stays so."""
        for path in list(self._files):
            self.remove(path)

    # --- room

    def promise(self, key: Hashable, n_bytes: int, place: int, now_s: float) -> list[str] | None:
        """Room for what is needed at this place: the files that must go for it first. None: there is no room.

        The promise stands until `settle(key)`. The files that go are forgotten at once, and take their room until
        `gone(key)`; before that the transfer must not begin.
        """
        before = self._promises.get(key)
        leaving: dict[str, int] = {}
        if self.limit_bytes is not None:
            n_over = self.n_bytes - (before.n_taken if before else 0) + n_bytes - self.limit_bytes
            found = self._evicted(n_over, place, now_s)
            if found is None:
                return None
            leaving = found
        self.settle(key)
        self._keep(key, _Promise(n_bytes, leaving))
        return list(leaving)

    def count(self, key: Hashable, n_bytes: int) -> None:
        """A transfer that goes on takes so much room, limit or not: from now on it is known, or known better."""
        known = self._promises.get(key)
        self.settle(key)
        self._keep(key, _Promise(n_bytes, known.leaving if known else {}))

    def settle(self, key: Hashable) -> None:
        """The transfer has ended, well or not."""
        known = self._promises.pop(key, None)
        if known is None:
            return
        self._n_taken -= known.n_taken
        if self._changed is not None:
            self._changed.update(known.leaving)

    def free(self, key: Hashable, n_bytes: int, place: int, now_s: float) -> list[str]:
        """Files that go so that `n_bytes` are free, as many as there are; they take their room until `gone(key)`."""
        leaving = self._evicted(n_bytes, place, now_s, partly=True) or {}
        self.settle(key)
        self._keep(key, _Promise(0, leaving))
        return list(leaving)

    def shrink(self, key: Hashable, now_s: float) -> list[str]:
        """Files that go because more lies there than the limit allows: it was filled without one, or by others."""
        if self.limit_bytes is None or self.n_bytes <= self.limit_bytes:
            return []
        n_staying = self._n_bytes + sum(promise.n_bytes for promise in self._promises.values())
        return self.free(key, n_staying - self.limit_bytes, -1, now_s)

    def gone(self, key: Hashable) -> None:
        """What had to go for this promise has gone."""
        known = self._promises.get(key)
        if known is None or not known.leaving:
            return
        self.settle(key)
        self._keep(key, _Promise(known.n_bytes))

    # --- inside

    def _keep(self, key: Hashable, promise: _Promise) -> None:
        if promise.n_bytes or promise.leaving:
            self._promises[key] = promise
            self._n_taken += promise.n_taken

    def _leaving(self) -> set[str]:
        return {path for promise in self._promises.values() for path in promise.leaving}

    def _evicted(self, n_bytes: int, place: int, now_s: float, *, partly: bool = False) -> dict[str, int] | None:
        """Files that go, `n_bytes` in all; None, and none, if there are not so many."""
        self._pass(now_s)
        taken: list[tuple[str, tuple[int, float]]] = []
        n_left = n_bytes
        while n_left > 0 and (first := self._order.first()) is not None:
            path, (kind, rank) = first
            if kind == _SOMEBODY and -rank <= place:
                break
            self._order.drop(path)
            taken.append(first)
            n_left -= self._files[path].n_bytes
        if n_left > 0 and not partly:
            for path, key in taken:
                self._order.put(path, key)
            return None
        leaving = {path: self._files[path].n_bytes for path, _ in taken}
        for path in leaving:
            self.remove(path)
        return leaving

    def _pass(self, now_s: float) -> None:
        """Let those go that were used a moment ago; also when the clock was put back."""
        while self._just_used:
            path, used_s = next(iter(self._just_used.items()))
            if 0 <= now_s - used_s < _JUST_USED_S:
                break
            del self._just_used[path]
            self._rank(path)

    def _rank(self, path: str) -> None:
        known = self._files.get(path)
        if known is None:  # it has no rank
            return
        if not known.may_go or path in self._just_used:
            self._order.drop(path)
            return
        need = self._need_of(path)
        if need.is_held:
            self._order.drop(path)
        elif need.place is None:
            self._order.put(path, (_NOBODY, known.last_use_s))
        else:
            self._order.put(path, (_SOMEBODY, -need.place))
