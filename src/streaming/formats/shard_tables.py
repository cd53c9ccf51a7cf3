"""Compact columns for very many shards: texts in one blob, and repeated values by number."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Many short texts in one UTF-8 blob. `ends` is int64 (text,) -> the offset in the blob at which the text ends."""

    blob: bytes
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Make a column of these texts."""
        blob = "".join(texts).encode()
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), dtype=np.int64)
        if len(texts) and ends[-1] != len(blob):  # not ASCII
            ends = np.cumsum([len(text.encode()) for text in texts], dtype=np.int64)
        return cls(blob, ends)

    def spread(self, there: NDArray[np.bool_]) -> Texts:
        """A column with these texts at the places set in `there`, bool (place,), and empty texts at the others."""
        return Texts(self.blob, np.append(np.int64(0), self.ends)[np.cumsum(there)])

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
    """A column of few distinct values at many places. `which` is int32 (place,) -> index into `values`."""

    values: tuple[T, ...]
    which: NDArray[np.int32]

    @classmethod
    def of(cls, values: Sequence[T]) -> Self:
        """Make a column of these values, one for each place."""
        number = {value: i for i, value in enumerate(dict.fromkeys(values))}
        return cls(tuple(number), np.fromiter(map(number.__getitem__, values), np.int32, len(values)))

    def at(self, places: NDArray[np.intp]) -> Self:
        """The column of the values at these places."""
        return replace(self, which=self.which[places])

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
    """One kind of file of every shard. `n_bytes` is int64 (shard,); -1 and an empty name stand for no file.

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
