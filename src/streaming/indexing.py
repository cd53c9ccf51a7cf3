"""Reading by number: what may stand in `dataset[...]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError, SampleIndexError

# What `dataset[...]` takes: a sample number, or something that holds sample numbers (nested as one likes).
At: TypeAlias = "int | np.integer[Any] | slice | Sequence[At] | NDArray[np.integer[Any]]"

Members: TypeAlias = "range | Sequence[At] | NDArray[np.integer[Any]]"


class Indexable:
    """Adds `[...]` by int, slice, list and array to a class that has `size` and `get_item(sample_id)`.

    An int gives one sample, anything else a list of what its members give. Negative numbers count from the end.
    Raises SampleIndexError (an IndexError) for a number outside, OptionError (a ValueError) for anything else.
    """

    @property
    def size(self) -> int:
        """How many samples there are to ask for."""
        raise NotImplementedError

    def get_item(self, sample_id: int) -> Any:
        """The sample of this number, from 0 to size - 1."""
        raise NotImplementedError

    def __getitem__(self, at: At) -> Any:
        if isinstance(at, int | np.integer):
            return self.get_item(checked(int(at), self.size))
        if isinstance(at, slice):
            return self.__getitems__(range(*at.indices(self.size)))
        if isinstance(at, list | tuple):
            return self.__getitems__(at)
        if isinstance(at, np.ndarray) and np.issubdtype(at.dtype, np.integer):
            return self.__getitems__(at) if at.ndim else self[int(at)]
        raise OptionError(
            f"samples are indexed by int, slice, list or integer array, not by {type(at).__name__}"
            + (f" of {at.dtype}" if isinstance(at, np.ndarray) else "")
        )

    def __getitems__(self, members: Members) -> list[Any]:
        """What each of these gives, read together where that is faster; PyTorch asks for batches by this name."""
        found: list[Any] = []
        for part, at_hand in self._together(members):
            with at_hand:
                found += [self[i] for i in members[part]]
        return found

    def _together(self, members: Members) -> Iterator[tuple[slice, AbstractContextManager[None]]]:
        """Parts of `members`, in order, each with a block in which its samples are at hand."""
        del members
        yield slice(None), nullcontext()


def numbers_of(members: Members, size: int) -> NDArray[np.int64] | None:
    """Sample numbers counted from the start, int64 (member,); None if not all members are numbers inside."""
    if not all(isinstance(member, int | np.integer) and -size <= member < size for member in members):
        return None
    numbers = np.fromiter(map(int, members), np.int64, len(members))
    return np.where(numbers < 0, numbers + size, numbers)


def checked(sample_id: int, size: int) -> int:
    """The number counted from the start, or SampleIndexError."""
    if not -size <= sample_id < size:
        raise SampleIndexError(f"sample {sample_id} is outside a dataset of {size} samples")
    return sample_id + size if sample_id < 0 else sample_id
