"""Several sequences merged evenly by their lengths, as a function of position.

The two shortest sequences are joined, again and again (a Huffman tree). Of the first q samples of a join of n = a + b
samples, `floor(qa/n + 1/2)` come from its left side. So every prefix holds each sequence's share to within 2 samples,
and a position is found by walking down the tree in exact integer steps.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError

MOST_SAMPLES: Final = 1 << 42
_LOW_BITS: Final = 21


@dataclass(frozen=True, slots=True)
class _Join:
    """`n` samples, of which `n_left` come from the left side. A side is a join or the number of a sequence."""

    n: int
    n_left: int
    left: _Join | int
    right: _Join | int


class EvenMerge:
    """The merge of sequences with these lengths. Raises OptionError if they add up to 2⁴² samples or more."""

    def __init__(self, lengths: list[int]) -> None:
        self._n_sequences = len(lengths)
        self.n_positions: int = sum(lengths)
        """The number of samples in all sequences."""
        if sum(lengths) >= MOST_SAMPLES:
            raise OptionError(f"an epoch that merges streams must be shorter than 2**42 samples, got {sum(lengths)}")
        # Ties go by number, and joins are numbered after the sequences: so the tree never depends on the heap.
        heap: list[tuple[int, int, _Join | int]] = [(n, number, number) for number, n in enumerate(lengths) if n]
        heapq.heapify(heap)
        number = len(lengths)
        while len(heap) > 1:
            n_light, _, light = heapq.heappop(heap)
            n_heavy, _, heavy = heapq.heappop(heap)
            heapq.heappush(heap, (n_light + n_heavy, number, _Join(n_light + n_heavy, n_heavy, heavy, light)))
            number += 1
        self._root: _Join | int = heap[0][2] if heap else 0
        self._paths = _paths(self._root)

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sequence of each position and the index there. int64 (position,) -> two of (position,)."""
        if isinstance(self._root, int):
            return np.full(len(positions), self._root, np.int64), positions
        sequences = np.empty(len(positions), np.int64)
        indices = np.empty(len(positions), np.int64)
        todo: list[tuple[_Join | int, NDArray[np.int64], NDArray[np.int64]]] = [
            (self._root, np.arange(len(positions)), positions)
        ]
        while todo:
            join, at, rank = todo.pop()
            if isinstance(join, int):
                sequences[at], indices[at] = join, rank
                continue
            before, rest = _divided(rank, join.n_left, join.n, join.n // 2)
            # Sample q comes from the left side if the first q + 1 hold one more of it than the first q.
            is_left = rest >= np.uint64(join.n - join.n_left)
            # Indexed by numbers: masks without a pattern cost several times as much.
            left, right = np.flatnonzero(is_left), np.flatnonzero(~is_left)
            todo.append((join.left, at[left], before[left]))
            todo.append((join.right, at[right], rank[right] - before[right]))
        return sequences, indices

    def positions(self, sequence: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of samples of one sequence: the inverse of `find`. int64 (index,) -> int64 (index,)."""
        ranks = indices
        for join, is_left in self._paths.get(sequence, []):
            # Sample r of the left side is the last of the first q samples, for the lowest q at which
            # floor(q n_left / n + 1/2) is r + 1. For the right side, for the lowest q at which q minus that is r + 1.
            half = join.n // 2
            if is_left:
                ranks, _ = _divided(ranks, join.n, join.n_left, join.n - half - 1)
            else:
                ranks, _ = _divided(ranks, join.n, join.n - join.n_left, half)
        return ranks

    def all_counts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the samples of each sequence before each position: int64 (position,) -> (position, sequence)."""
        counts = np.zeros((len(positions), self._n_sequences), np.int64)
        todo: list[tuple[_Join | int, NDArray[np.int64]]] = [(self._root, positions)] if self._n_sequences else []
        while todo:
            join, n_first = todo.pop()
            if isinstance(join, int):
                counts[:, join] = n_first
                continue
            n_left, _ = _divided(n_first, join.n_left, join.n, join.n // 2)
            todo += [(join.left, n_left), (join.right, n_first - n_left)]
        return counts

    def counts(self, position: int) -> list[int]:
        """Count the samples of each sequence among the first `position`."""
        counts = [0] * self._n_sequences
        todo: list[tuple[_Join | int, int]] = [(self._root, position)]
        while todo:
            join, n_first = todo.pop()
            if isinstance(join, int):
                if counts:
                    counts[join] = n_first
                continue
            n_left = (n_first * join.n_left + join.n // 2) // join.n
            todo += [(join.left, n_left), (join.right, n_first - n_left)]
        return counts


def _paths(root: _Join | int) -> dict[int, list[tuple[_Join, bool]]]:
    """Return, for each sequence, the joins above it, lowest first, and whether it lies on their left side."""
    paths: dict[int, list[tuple[_Join, bool]]] = {}
    todo: list[tuple[_Join | int, list[tuple[_Join, bool]]]] = [(root, [])]
    while todo:
        join, above = todo.pop()
        if isinstance(join, int):
            paths[join] = above
        else:
            todo += [(join.left, [(join, True), *above]), (join.right, [(join, False), *above])]
    return paths


def _divided(
    ranks: NDArray[np.int64], factor: int, divisor: int, plus: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Divide rank × factor + plus by a divisor: quotient and rest. In two digits, as a product may need 84 bits."""
    words, factor_word = ranks.astype(np.uint64), np.uint64(factor)
    if int(ranks.max(initial=0)) * factor < 1 << 63:  # one digit suffices
        words *= factor_word
        words += np.uint64(plus)
        quotient, rest = _divided_words(words, divisor)
        return quotient.view(np.int64), rest
    high, rest = _divided_words((words >> np.uint64(_LOW_BITS)) * factor_word, divisor)
    low = (rest << np.uint64(_LOW_BITS)) + (words & np.uint64((1 << _LOW_BITS) - 1)) * factor_word + np.uint64(plus)
    quotient, rest = _divided_words(low, divisor)
    return ((high << np.uint64(_LOW_BITS)) + quotient).view(np.int64), rest


def _divided_words(words: NDArray[np.uint64], divisor: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return quotient and rest, several times as fast as divmod."""
    quotient: NDArray[np.uint64] = words // np.uint64(divisor)
    return quotient, words - quotient * np.uint64(divisor)
