"""Compact columns for facts about very many shards: texts in one blob, repeated values by number."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Many short texts in one UTF-8 blob. `ends` is int64 (text,) -> where in the blob it ends."""

    blob: bytes
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> str:
        i = range(len(self.ends))[i]
        start = int(self.ends[i - 1]) if i else 0
        return self.blob[start : int(self.ends[i])].decode()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Texts):
            return NotImplemented
        return self.blob == other.blob and np.array_equal(self.ends, other.ends)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Repeated(Generic[T]):
    """Few distinct values for many places. `which` is int32 (place,) -> index into `values`."""

    values: tuple[T, ...]
    which: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, i: int) -> T:
        return self.values[int(self.which[i])]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Repeated):
            return NotImplemented
        return self.values == other.values and np.array_equal(self.which, other.which)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """One kind of file of every shard. `n_bytes` is int64 (shard,); -1 and an empty name mean that there is none.

    `hash_names` holds names of algorithms, and `digests` their hex digests in the same order, both joined by commas.
    """

    names: Texts
    n_bytes: NDArray[np.int64]
    hash_names: Repeated[str]
    digests: Texts

    def name(self, i: int) -> str | None:
        """Basename, relative to the folder of the index; None if shard i has no such file."""
        return self.names[i] or None

    def hashes(self, i: int) -> dict[str, str]:
        """Algorithm to hex digest; empty if none are known."""
        names = self.hash_names[i]
        return dict(zip(names.split(","), self.digests[i].split(","), strict=True)) if names else {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Files):
            return NotImplemented
        return (
            np.array_equal(self.n_bytes, other.n_bytes)
            and self.names == other.names
            and self.hash_names == other.hash_names
            and self.digests == other.digests
        )

    __hash__ = None  # type: ignore[assignment]


# While they are filled, part by part: nothing here keeps small Python objects, which would slow the garbage collector.


class GrowingNumbers:
    """An int64 column that is being filled."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]

    def add(self, numbers: Sequence[int]) -> None:
        """Append these."""
        self._parts.append(np.array(numbers, np.int64))

    def repeat(self, number: int, n: int) -> None:
        """Append the same number n times."""
        self._parts.append(np.full(n, number, np.int64))

    def finished(self) -> NDArray[np.int64]:
        """All of them."""
        return np.concatenate(self._parts)


class GrowingTexts:
    """A column of texts that is being filled."""

    def __init__(self) -> None:
        self._blobs: list[bytes] = []
        self._lengths = GrowingNumbers()

    def add(self, texts: Sequence[str]) -> None:
        """Append these."""
        whole = "".join(texts)
        self._blobs.append(whole.encode())
        self._lengths.add(list(map(len, texts if whole.isascii() else [text.encode() for text in texts])))

    def repeat_nothing(self, n: int) -> None:
        """Append n empty texts."""
        self._lengths.repeat(0, n)

    def finished(self) -> Texts:
        """All of them."""
        return Texts(b"".join(self._blobs), np.cumsum(self._lengths.finished(), dtype=np.int64))


class GrowingRepeated(Generic[T]):
    """A column of few distinct values that is being filled."""

    def __init__(self) -> None:
        self._number: dict[T, int] = {}
        self._parts: list[NDArray[np.int32]] = [np.empty(0, np.int32)]

    def add(self, values: Sequence[T]) -> None:
        """Append these."""
        if not values:
            return
        if values.count(values[0]) == len(values):  # the usual case, at the speed of C
            self.repeat(values[0], len(values))
            return
        number = self._number
        self._parts.append(np.array([number.setdefault(value, len(number)) for value in values], np.int32))

    def repeat(self, value: T, n: int) -> None:
        """Append the same value n times."""
        self._parts.append(np.full(n, self._number.setdefault(value, len(self._number)), np.int32))

    def finished(self) -> Repeated[T]:
        """All of them."""
        return Repeated(tuple(self._number), np.concatenate(self._parts))


class GrowingFiles:
    """One kind of file that is being filled."""

    def __init__(self) -> None:
        self._names = GrowingTexts()
        self._n_bytes = GrowingNumbers()
        self._hash_names: GrowingRepeated[str] = GrowingRepeated()
        self._digests = GrowingTexts()
        self._n_without = 0

    def add(
        self, names: Sequence[str], n_bytes: Sequence[int], hash_names: Sequence[str], digests: Sequence[str]
    ) -> None:
        """Append the files of some shards."""
        self._settle()
        self._names.add(names)
        self._n_bytes.add(n_bytes)
        self._hash_names.add(hash_names)
        self._digests.add(digests)

    def add_none(self, n: int) -> None:
        """Append n shards without such a file."""
        self._n_without += n

    def finished(self) -> Files:
        """All of them."""
        self._settle()
        return Files(
            self._names.finished(), self._n_bytes.finished(), self._hash_names.finished(), self._digests.finished()
        )

    def _settle(self) -> None:
        if self._n_without:
            self._names.repeat_nothing(self._n_without)
            self._n_bytes.repeat(-1, self._n_without)
            self._hash_names.repeat("", self._n_without)
            self._digests.repeat_nothing(self._n_without)
            self._n_without = 0
