"""The forms of `dataset[...]`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import OptionError, SampleIndexError
from streaming.indexing import Indexable, checked
from streaming.order import Catalog


class Numbers(Indexable):
    """A dataset whose sample i is i."""

    def __init__(self, n: int) -> None:
        self.n = n
        catalog = Catalog(np.full(1, n), np.ones(1, np.int64))
        self._streaming_internals: Any = SimpleNamespace(store=SimpleNamespace(catalog=catalog, any_by_parts=False))

    def get_item(self, sample_id: int) -> int:
        assert 0 <= sample_id < self.n
        return sample_id


bounds = st.none() | st.integers(-30, 30)


@given(n=st.integers(0, 20), start=bounds, stop=bounds, step=bounds.filter(lambda step: step != 0))
def test_slices_are_those_of_a_list(n: int, start: int | None, stop: int | None, step: int | None) -> None:
    """Any slice gives the same as for a list, also backwards."""
    assert Numbers(n)[start:stop:step] == list(range(n))[start:stop:step]


@given(n=st.integers(1, 20), data=st.data())
def test_arrays_and_lists_give_lists_of_the_same_form(n: int, data: st.DataObject) -> None:
    """Integer arrays and (nested) lists are read member by member; negative numbers count from the end."""
    at = data.draw(st.lists(st.integers(-n, n - 1), max_size=6))
    expected = [i % n for i in at]
    numbers = Numbers(n)
    assert numbers[at] == numbers[tuple(at)] == numbers[np.array(at, dtype=np.int32)] == expected
    assert numbers[[at, at]] == [expected, expected]
    assert numbers[np.array([at, at], dtype=np.int64)] == [expected, expected]


def test_numpy_integers_are_sample_numbers() -> None:
    """np.int64, np.uint8 and 0-d arrays give one sample."""
    assert Numbers(9)[np.int64(-1)] == Numbers(9)[np.uint8(8)] == Numbers(9)[np.array(8)] == 8


@pytest.mark.parametrize("at", [9, -10, [0, 9], np.array([3, -10])])
def test_a_number_out_of_range_is_an_index_error(at: Any) -> None:
    """A list raises the same; `for sample in dataset` by indexing ends with it."""
    with pytest.raises(IndexError, match="9 samples") as found:
        Numbers(9)[at]
    assert isinstance(found.value, SampleIndexError)


@pytest.mark.parametrize("at", [1.0, "1", None, np.array([1.0]), np.array([True]), {1}])
def test_anything_else_is_refused(at: Any) -> None:
    """Floats, strings and boolean masks are no sample numbers."""
    with pytest.raises(OptionError, match="indexed by"):
        Numbers(9)[at]


def test_checked_counts_from_the_end() -> None:
    """-size is the first sample."""
    assert checked(-9, 9) == 0
