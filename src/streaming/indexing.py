"""Reading by sample number: the forms of `dataset[...]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError, SampleIndexError
from streaming.sizes import Internals

# What `dataset[...]` takes: a sample number, or a collection of sample numbers, which may be nested; tensors, too.
At: TypeAlias = "int | np.integer[Any] | slice | Sequence[At] | NDArray[np.integer[Any]]"

Members: TypeAlias = "range | Sequence[At] | NDArray[np.integer[Any]]"


class Indexable:
    """Adds `[...]` by int, slice, list and array to a dataset that has `get_item(sample_id)`.

    An int gives a sample, and a collection gives a list with an item for each member. Negative numbers count from the
    end. Raises SampleIndexError (an IndexError) for a number out of range, OptionError (a ValueError) for other types.
    """

    _streaming_internals: Internals

    def get_item(self, sample_id: int) -> Any:
        """The sample `sample_id`, from 0 to size - 1."""
        raise NotImplementedError

    def __getitem__(self, at: At) -> Any:
        if isinstance(at, int | np.integer):
            return self.get_item(checked(int(at), self._streaming_internals.store.catalog.n_samples))
        if isinstance(at, slice):
            return self.__getitems__(range(*at.indices(self._streaming_internals.store.catalog.n_samples)))
        if isinstance(at, list | tuple | range):
            return self.__getitems__(at)
        found = np.asarray(at) if hasattr(at, "__array__") else None  # a tensor, too
        if found is not None and np.issubdtype(found.dtype, np.integer):
            return self.__getitems__(found) if found.ndim else self[int(found)]
        raise OptionError(
            f"samples are indexed by int, slice, list or integer array, not by {type(at).__name__}"
            + ("" if found is None else f" of {found.dtype}")
        )

    def __getitems__(self, members: Members) -> list[Any]:
        """The items of all members, read together where that is faster. PyTorch fetches batches by this method."""
        store = self._streaming_internals.store
        numbers = numbers_of(members, store.catalog.n_samples) if store.any_by_parts else None
        if numbers is None:  # samples come with their whole shard, or this is not the innermost list yet
            return [self[i] for i in members]
        found: list[Any] = []
        for part, at_hand in store.together(numbers):
            with at_hand:
                found += [self[i] for i in members[part]]
        return found


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
