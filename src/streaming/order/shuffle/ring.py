"""The ring on which `py1e` and `py1s` shuffle a canonical node.

A run at places o .. o+z-1 of a canonical node with n places is spread over `span = min(z + block, n)` places centred on
itself. The sample at place x has the key `o + (z - span)/2 + U_x × span`, modulo n, and samples are sorted by
(key, place). Keys are integers with 20 fractional bits; U_x is 32 random bits. A sample whose key crosses the seam of
the ring counts with its place on the other side, x - n or x + n. This matters for equal keys only, and keeps the places
of a window close together.

Both ends of the spans grow with the number of the run. So all samples of the runs before i precede those of the runs
from j on if the end of span i - 1 is at most the start of span j. Windows are cut by this rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.order.bits import bits_between
from streaming.order.shuffle.protocol import RunUses

FRACTION_BITS: Final = 20
_NEVER: Final = (1 << 63) - 1
_SMALLEST_STEP: Final = 4096
_USUAL_STEP: Final = 1 << 15
"""Fewest samples that a walk takes in per step once it is under way; a tenth of this would cost 1.6 times as much."""
_BLOCK: Final = 1 << 14
_WORD: Final = (1 << 64) - 1


@dataclass(frozen=True, eq=False, slots=True)
class Samples:
    """Some samples: their keys and ring places, int64 (sample,) each."""

    keys: NDArray[np.int64]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.keys)


NO_SAMPLES: Final = Samples(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False, slots=True)
class Load:
    """What comes in: blocks of at most `n_most` samples in all. `keys`, `places`: the (start, stop) of their ranges."""

    blocks: Iterable[Samples]
    n_most: int
    keys: tuple[int, int]
    places: tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """What goes out: `places` in order, int64 (sample,); the samples that wait; how many are still to be skipped."""

    places: NDArray[np.int64]
    waiting: Samples
    n_unseen: int


class Ring:
    """The shuffle of one canonical node. `n_rows`: rows of each run in run order, int64 (run,), none of them 0."""

    def __init__(self, n_rows: NDArray[np.int64], block: int, key: int) -> None:
        self._key = key
        self._n_rows = n_rows
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_rows)])
        self._n = int(self._offsets[-1])
        self._top = self._n << FRACTION_BITS
        self._span = np.minimum(n_rows + min(block, self._n), self._n)
        middle_twice = self._offsets[:-1] + self._offsets[1:]
        self._start = (middle_twice - self._span) << (FRACTION_BITS - 1)
        self._end = (middle_twice + self._span) << (FRACTION_BITS - 1)
        self._widest = int(self._span.max(initial=0))
        self._largest_step = max(_USUAL_STEP, 2 * (self._widest - int(n_rows.max(initial=0))))
        # Runs before `head` start below the seam; runs from `tail` on end beyond it.
        self._head = int(np.searchsorted(self._start, 0, "left"))
        self._tail = int(np.searchsorted(self._end, self._top, "right"))
        self._cross_seam()

    @property
    def n_places(self) -> int:
        """See WindowShuffle."""
        return self._n

    @property
    def reach(self) -> int:
        """See WindowShuffle. A jump evaluates about two windows."""
        return 2 * self._widest + _SMALLEST_STEP

    def walk(self, rank: int) -> Iterator[NDArray[np.int64]]:
        """See WindowShuffle. Samples that no later run can precede are yielded; the others wait for the next step."""
        run, waiting, n_unseen = self._entry(rank)
        late_comes = len(self._late) > 0
        # The first step takes the runs that start before the likely key of `rank`, and not many more.
        stop = int(np.searchsorted(self._start, (rank + _SMALLEST_STEP) << FRACTION_BITS, "left"))
        step_rows = max(_SMALLEST_STEP, self._largest_step // 4)
        while run < len(self._n_rows) or len(waiting) or late_comes:
            stop = min(max(stop, run + 1), len(self._n_rows))
            add_late = late_comes and bool(self._lowest[stop] == self._late_lowest)
            late_comes = late_comes and not add_late
            limit = int(self._lowest[stop] if late_comes else self._start_or_never[stop])
            done = step(waiting, self._load(run, stop, add_late), limit, n_unseen)
            run, waiting, n_unseen = stop, done.waiting, done.n_unseen
            stop = int(np.searchsorted(self._offsets, self._offsets[run] + step_rows, "left"))
            step_rows = min(2 * step_rows, self._largest_step)
            if len(done.places):
                yield self._wrapped(done.places)

    def uses(self) -> RunUses:
        """See WindowShuffle."""
        runs = np.arange(len(self._n_rows))
        low, high = np.maximum(self._start, 0), np.minimum(self._end, self._top)
        front = np.unique(self._run_at(self._front.places + self._n))
        late = np.unique(self._run_at(self._late.places - self._n))
        run = np.concatenate([runs, front, late])
        low = np.concatenate([low, np.zeros(len(front), np.int64), self._start[late] + self._top])
        high = np.concatenate([high, self._end[front] - self._top, np.full(len(late), self._top)])
        # Runs that start at or above `high` have no sample below it, nor have late samples if they begin there.
        end = self._count_before[np.searchsorted(self._lowest[:-1], high, "left")]
        end = np.where(high > self._late_lowest, self._n, end)
        return RunUses(run, low >> FRACTION_BITS, (high >> FRACTION_BITS) + 1, end)

    def _cross_seam(self) -> None:
        """Find, once, the samples whose keys cross the seam: the front comes first, the late ones last.

        The other samples are counted without them.
        """
        head_stop, tail_start = int(self._offsets[self._head]), int(self._offsets[self._tail])
        keys = self._raw_keys(0, head_stop)
        late = np.flatnonzero(keys < 0)
        self._late = Samples(keys[late] + self._top, late + self._n)
        keys = self._raw_keys(tail_start, self._n)
        front = np.flatnonzero(keys >= self._top)
        self._front = Samples(keys[front] - self._top, front + tail_start - self._n)
        crossed = np.searchsorted(self._late.places, self._offsets + self._n, "left")
        crossed += np.searchsorted(self._front.places, self._offsets - self._n, "left")
        self._count_before = self._offsets - crossed + len(self._front)
        """Samples in the front and the runs before i, int64 (run + 1,)."""
        self._late_lowest = int(self._late.keys.min(initial=_NEVER))
        self._start_or_never = np.append(np.maximum(self._start, 0), _NEVER)
        self._lowest = np.minimum(self._start_or_never, self._late_lowest)
        """Lowest key from run i on, late samples included, int64 (run + 1,)."""
        front_end = int(self._front.keys.max(initial=-1)) + 1
        self._highest = np.maximum(np.append(np.int64(0), np.minimum(self._end, self._top)), front_end)
        """Upper bound of the keys of the front and the runs before i, int64 (run + 1,)."""

    def _entry(self, rank: int) -> tuple[int, Samples, int]:
        """Return where to begin for `rank`: the first run, the samples that wait, and how many samples to skip.

        Let B be the last run with at most `rank` samples before it. At most `rank` samples lie below its lowest key, so
        the sample at `rank` does not. Runs that end at or below that key come before `rank` with all their samples and
        need no evaluation. (The samples that are skipped are not in their true order, which does not show.)
        """
        boundary = int(np.searchsorted(self._count_before, rank, "right")) - 1
        run = int(np.searchsorted(self._highest, self._lowest[boundary], "right")) - 1 if boundary >= 0 else -1
        run = min(run, boundary)
        if run < 0:
            return 0, self._front, rank
        return run, NO_SAMPLES, rank - int(self._count_before[run])

    def _load(self, first_run: int, stop_run: int, with_late: bool) -> Load:
        """Load these runs without the samples that cross the seam, and, with `with_late`, the late samples."""
        first, stop = int(self._offsets[first_run]), int(self._offsets[stop_run])
        keys = int(self._start_or_never[first_run]), int(self._highest[stop_run])
        if not with_late:
            return Load(self._blocks(first_run, stop_run), stop - first, keys, (first, stop))
        blocks = [*self._blocks(first_run, stop_run), self._late]
        keys = min(keys[0], self._late_lowest), self._top
        return Load(blocks, stop - first + len(self._late), keys, (first, int(self._late.places.max()) + 1))

    def _blocks(self, first_run: int, stop_run: int) -> Iterator[Samples]:
        """Yield the samples of these runs that do not cross the seam, in blocks that fit the processor's cache."""
        crosses = first_run < self._head or stop_run > self._tail
        stop = int(self._offsets[stop_run])
        for first in range(int(self._offsets[first_run]), stop, _BLOCK):
            keys, places = self._raw_keys(first, min(first + _BLOCK, stop)), np.arange(first, min(first + _BLOCK, stop))
            if crosses:
                inside = (keys >= 0) & (keys < self._top)
                keys, places = keys[inside], places[inside]
            yield Samples(keys, places)

    def _raw_keys(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the keys of the samples at places first..stop-1 before they are taken modulo n, int64 (place,)."""
        words = bits_between(self._key, first, stop)
        words >>= np.uint64(32)
        first_run = int(np.searchsorted(self._offsets, first, "right")) - 1
        stop_run = int(np.searchsorted(self._offsets, stop, "left"))
        runs = slice(first_run, stop_run)
        begins = np.maximum(self._offsets[runs], first)
        counts = np.minimum(self._offsets[first_run + 1 : stop_run + 1], stop) - begins
        words *= np.repeat(self._span[runs].view(np.uint64), counts)
        words >>= np.uint64(32 - FRACTION_BITS)
        keys = words.view(np.int64)
        keys += np.repeat(self._start[runs], counts)
        return keys

    def _run_at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._offsets, places, "right") - 1

    def _wrapped(self, ring_places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turn ring places into places of the canonical node, in the memory of the argument."""
        if ring_places.view(np.uint64).max() >= self._n:  # a place below 0 is huge as an unsigned number
            ring_places[ring_places < 0] += self._n
            ring_places[ring_places >= self._n] -= self._n
        return ring_places


# --- one step of a walk: samples come in, and those that no later sample can precede go out in order


def step(waiting: Samples, load: Load, limit: int, n_unseen: int) -> Step:
    """Take in a load and give out all samples with keys below `limit`, in order of (key, place).

    The first `n_unseen` of them are skipped, since a reader that jumped does not want them.
    """
    base_key, key_stop = load.keys
    base_place, place_stop = load.places
    if len(waiting):
        base_key, key_stop = min(base_key, int(waiting.keys.min())), max(key_stop, int(waiting.keys.max()) + 1)
        base_place = min(base_place, int(waiting.places.min()))
        place_stop = max(place_stop, int(waiting.places.max()) + 1)
    shift = max(0, place_stop - 1 - base_place).bit_length()
    if max(0, key_stop - base_key).bit_length() + shift > 64:
        return _step_with_pairs(waiting, load, limit, n_unseen)
    return _step_with_words(waiting, load, min(limit, key_stop), n_unseen, _Packing(base_key, base_place, shift))


@dataclass(frozen=True, slots=True)
class _Packing:
    """A sample as one word, `(key - base_key) << shift | (place - base_place)`, so that words sort by (key, place).

    A plain sort of words takes 8 ns an element, a stable argsort 57.
    """

    base_key: int
    base_place: int
    shift: int

    def pack(self, samples: Samples, into: NDArray[np.uint64]) -> None:
        # Modulo 2**64, since the word itself fits: so no pass over the samples needs memory of its own.
        np.left_shift(samples.keys.view(np.uint64), np.uint64(self.shift), out=into)
        into += samples.places.view(np.uint64)
        into -= np.uint64(((self.base_key << self.shift) + self.base_place) & _WORD)

    def unpack(self, words: NDArray[np.uint64]) -> Samples:
        keys = (words >> np.uint64(self.shift)).view(np.int64)
        keys += self.base_key
        return Samples(keys, self.places(words))

    def places(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the places of words, in the memory of the words."""
        words &= np.uint64((1 << self.shift) - 1)
        places = words.view(np.int64)
        places += self.base_place
        return places


def _step_with_words(waiting: Samples, load: Load, limit: int, n_unseen: int, packing: _Packing) -> Step:
    words = np.empty(len(waiting) + load.n_most, np.uint64)
    filled = len(waiting)
    packing.pack(waiting, words[:filled])
    for block in load.blocks:
        packing.pack(block, words[filled : filled + len(block)])
        filled += len(block)
    words = words[:filled]
    bound = np.uint64((limit - packing.base_key) << packing.shift) if limit > packing.base_key else np.uint64(0)
    if n_unseen:
        # Neither the samples that wait nor those that are skipped need an order.
        n_ready = int(np.count_nonzero(words < bound))
        if n_ready < filled:
            words.partition(n_ready)
        if n_unseen < n_ready:
            words[:n_ready].partition(n_unseen)
            words[n_unseen:n_ready].sort()
    else:
        words.sort()
        n_ready = int(np.searchsorted(words, bound, "left"))
    waiting = packing.unpack(words[n_ready:])
    return Step(packing.places(words[n_unseen:n_ready]), waiting, max(0, n_unseen - n_ready))


def _step_with_pairs(waiting: Samples, load: Load, limit: int, n_unseen: int) -> Step:
    """Do a step whose window is too wide for words of 64 bits, in about 4 × the time."""
    blocks = [waiting, *load.blocks]
    keys = np.concatenate([block.keys for block in blocks])
    places = np.concatenate([block.places for block in blocks])
    waits = keys >= limit
    waiting = Samples(keys[waits], places[waits])
    keys, places = keys[~waits], places[~waits]
    if len(keys) <= n_unseen:
        return Step(NO_SAMPLES.places, waiting, n_unseen - len(keys))
    return Step(_places_in_order(keys, places)[n_unseen:], waiting, 0)


def _places_in_order(keys: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(keys)
    keys, places = keys[order], places[order]
    equal = keys[1:] == keys[:-1]
    if equal.any():  # equal keys are rare, and only these are sorted by place
        tied = np.zeros(len(keys), np.bool_)
        tied[1:] |= equal
        tied[:-1] |= equal
        at = np.flatnonzero(tied)
        places[at] = places[at][np.lexsort((places[at], keys[at]))]
    return places
