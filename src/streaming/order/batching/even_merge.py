"""Several sequences merged evenly by their lengths, as a function of position.

The two lightest sequences are joined, again and again; a join of n = a + b samples gives its left side
`floor(qa/n + 1/2)` of its first q. So every prefix holds each sequence's share to within 2 samples, and a position is
found by walking down in exact integer steps.
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
    """`n` samples, of which `n_left` come from the left side; a side is a join or the number of a sequence."""

    n: int
    n_left: int
    left: _Join | int
    right: _Join | int


class EvenMerge:
    """The merge of sequences with these lengths. Raises OptionError from 2⁴² samples in all."""

    def __init__(self, lengths: list[int]) -> None:
        self._n_sequences = len(lengths)
        self.n_positions: int = sum(lengths)
        """How many samples there are."""
        if sum(lengths) >= MOST_SAMPLES:
            raise OptionError(f"an epoch that merges streams must be shorter than 2**42 samples, got {sum(lengths)}")
        # Ties go by number; joins are numbered after the sequences, so a tree never depends on the heap.
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
        """Which sequence each position comes from, and the index there. int64 (position,) -> two of the same."""
        if isinstance(self._root, int):
            return np.full(len(positions), self._root, np.int64), positions
        sequences = np.empty(len(positions), np.int64)
        indices = np.empty(len(positions), np.int64)
        todo: list[tuple[_Join | int, NDArray[np.int64], NDArray[np.int64]]] = [
            (self._root, np.arange(len(positions)), positions)
        ]
        while todo:
            node, at, rank = todo.pop()
            if isinstance(node, int):
                sequences[at], indices[at] = node, rank
                continue
            before, rest = _divided(rank, node.n_left, node.n, node.n // 2)
            # The next one is of the left side if that has one more of the first q + 1.
            is_left = rest >= np.uint64(node.n - node.n_left)
            # By numbers, as masks that follow no pattern cost several times as much.
            left, right = np.flatnonzero(is_left), np.flatnonzero(~is_left)
            todo.append((node.left, at[left], before[left]))
            todo.append((node.right, at[right], rank[right] - before[right]))
        return sequences, indices

    def positions(self, sequence: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of samples of one sequence: what `find` undoes. int64 (index,) -> int64 (index,)."""
        ranks = indices
        for join, is_left in self._paths.get(sequence, []):
            # Sample r of the left side is the last of the first q where floor(q n_left / n + 1/2) is first r + 1, of
            # the right side where q less that is first r + 1.
            half = join.n // 2
            if is_left:
                ranks, _ = _divided(ranks, join.n, join.n_left, join.n - half - 1)
            else:
                ranks, _ = _divided(ranks, join.n, join.n - join.n_left, half)
        return ranks

    def all_counts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many samples before each position come from each sequence: int64 (position,) -> (position, sequence)."""
        counts = np.zeros((len(positions), self._n_sequences), np.int64)
        todo: list[tuple[_Join | int, NDArray[np.int64]]] = [(self._root, positions)] if self._n_sequences else []
        while todo:
            node, n_first = todo.pop()
            if isinstance(node, int):
                counts[:, node] = n_first
                continue
            n_left, _ = _divided(n_first, node.n_left, node.n, node.n // 2)
            todo += [(node.left, n_left), (node.right, n_first - n_left)]
        return counts

    def counts(self, position: int) -> list[int]:
        """How many of the first `position` samples come from each sequence."""
        counts = [0] * self._n_sequences
        todo: list[tuple[_Join | int, int]] = [(self._root, position)]
        while todo:
            node, n_first = todo.pop()
            if isinstance(node, int):
                if counts:
                    counts[node] = n_first
                continue
            n_left = (n_first * node.n_left + node.n // 2) // node.n
            todo += [(node.left, n_left), (node.right, n_first - n_left)]
        return counts


def _paths(root: _Join | int) -> dict[int, list[tuple[_Join, bool]]]:
    """For each sequence the joins above it, from below, and whether it is on their left."""
    paths: dict[int, list[tuple[_Join, bool]]] = {}
    todo: list[tuple[_Join | int, list[tuple[_Join, bool]]]] = [(root, [])]
    while todo:
        node, above = todo.pop()
        if isinstance(node, int):
            paths[node] = above
        else:
            todo += [(node.left, [(node, True), *above]), (node.right, [(node, False), *above])]
    return paths


def _divided(
    ranks: NDArray[np.int64], factor: int, divisor: int, plus: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Rank × factor + plus divided by a divisor: quotient and rest. In two digits where a product may need 84 bits."""
    words, factor_word = ranks.astype(np.uint64), np.uint64(factor)
    if int(ranks.max(initial=0)) * factor < 1 << 63:  # one will do
        words *= factor_word
        words += np.uint64(plus)
        quotient, rest = _divided_words(words, divisor)
        return quotient.view(np.int64), rest
    high, rest = _divided_words((words >> np.uint64(_LOW_BITS)) * factor_word, divisor)
    low = (rest << np.uint64(_LOW_BITS)) + (words & np.uint64((1 << _LOW_BITS) - 1)) * factor_word + np.uint64(plus)
    quotient, rest = _divided_words(low, divisor)
    return ((high << np.uint64(_LOW_BITS)) + quotient).view(np.int64), rest


def _divided_words(words: NDArray[np.uint64], divisor: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Quotient and rest; several times as fast as divmod."""
    quotient: NDArray[np.uint64] = words // np.uint64(divisor)
    return quotient, words - quotient * np.uint64(divisor)
