"""Reading by sample number: the forms of `dataset[...]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError, SampleIndexError

# What `dataset[...]` takes: a sample number, or a collection of sample numbers, which may be nested.
At: TypeAlias = "int | np.integer[Any] | slice | Sequence[At] | NDArray[np.integer[Any]]"

Members: TypeAlias = "range | Sequence[At] | NDArray[np.integer[Any]]"


class Indexable:
    """Adds `[...]` by int, slice, list and array to a class that has `size` and `get_item(sample_id)`.

    An int gives a sample, and a collection gives a list with an item for each member. Negative numbers count from the
    end. Raises SampleIndexError (an IndexError) for a number out of range, OptionError (a ValueError) for other types.
    """

    @property
    def size(self) -> int:
        """The number of samples."""
        raise NotImplementedError

    def get_item(self, sample_id: int) -> Any:
        """The sample `sample_id`, from 0 to size - 1."""
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
        """The items of all members, read together where that is faster. PyTorch fetches batches by this method."""
        found: list[Any] = []
        for part, at_hand in self._together(members):
            with at_hand:
                found += [self[i] for i in members[part]]
        return found

    def _together(self, members: Members) -> Iterator[tuple[slice, AbstractContextManager[None]]]:
        """Slices that cut `members` into parts, in order, each with a context in which its samples are at hand."""
        del members
        yield slice(None), nullcontext()


def numbers_of(members: Members, size: int) -> NDArray[np.int64] | None:
    """Sample numbers counted from the start, int64 (member,); None unless all members are numbers in range."""
    if not all(isinstance(member, int | np.integer) and -size <= member < size for member in members):
        return None
    numbers = np.fromiter(map(int, members), np.int64, len(members))
    return np.where(numbers < 0, numbers + size, numbers)


def checked(sample_id: int, size: int) -> int:
    """The sample number counted from the start. Raises SampleIndexError if it is out of range."""
    if not -size <= sample_id < size:
        raise SampleIndexError(f"sample {sample_id} is outside a dataset of {size} samples")
    return sample_id + size if sample_id < 0 else sample_id
