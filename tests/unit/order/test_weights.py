"""Weights: the exact number of samples that they give, and which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import OptionError
from streaming.order import Catalog, EpochOrder, OrderSpec, StreamWeight, resolve_draws


def catalog(*sizes: int) -> Catalog:
    """Make one stream per size, of one shard; long streams have several shards."""
    shards = [[min(1 << 30, size - first) for first in range(0, size, 1 << 30)] or [0] for size in sizes]
    return Catalog(np.array([n for stream in shards for n in stream]), np.array([len(stream) for stream in shards]))


def draws(sizes: tuple[int, ...], *weights: dict[str, Any], epoch_size: int | None = None, seed: int = 1) -> list[int]:
    resolved: list[int] = resolve_draws(
        catalog(*sizes), [StreamWeight(**w) for w in weights], epoch_size, seed
    ).tolist()
    return resolved


@pytest.mark.parametrize(
    ("sizes", "weights", "epoch_size", "expected"),
    [
        ((900, 100), [{"proportion": 0.5}, {"proportion": 0.5}], 400, [200, 200]),
        ((900, 100), [{"proportion": 1}, {"proportion": 3}], None, [250, 750]),
        ((900, 100), [{"proportion": 1}, {"proportion": 0}], 7, [7, 0]),
        ((900, 100), [{}, {}], None, [900, 100]),
        ((900, 100), [{}, {}], 50, [45, 5]),
        ((900, 0), [{}, {}], 50, [50, 0]),
        ((900, 0), [{"proportion": 2.5}, {"proportion": 0.0}], None, [900, 0]),
        ((900, 100), [{"repeat": 0.29}, {"choose": 7}], None, [261, 7]),
        ((900, 100), [{"repeat": 1 / 3}, {"repeat": 0}], None, [300, 0]),
        ((900, 100), [{"repeat": 2.5}, {}], None, [2250, 100]),
        ((7, 100), [{"repeat": 0.5}, {}], 0, [3, 100]),
        ((10, 10, 10), [{"proportion": 0.1}, {"proportion": 0.2}, {"proportion": 0.7}], 1000, [100, 200, 700]),
        ((10, 10, 10), [{"proportion": 1 / 6}, {"proportion": 1 / 3}, {"proportion": 1 / 2}], 600, [100, 200, 300]),
        ((10, 10), [{"proportion": np.float32(0.1)}, {"proportion": np.float32(0.9)}], 10**12, [10**11, 9 * 10**11]),
        ((10**12 + 1, 3), [{"repeat": 0.5}, {"choose": np.int64(2)}], None, [5 * 10**11, 2]),
        ((0, 0), [{}, {}], None, [0, 0]),
    ],
)
def test_weights_come_to(
    sizes: tuple[int, ...], weights: list[dict[str, Any]], epoch_size: int | None, expected: list[int]
) -> None:
    """Shares are exact to the sample; a float stands for the decimal fraction it is written as."""
    assert draws(sizes, *weights, epoch_size=epoch_size) == expected


@given(
    proportions=st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.integers(0, 9)), min_size=1, max_size=8),
    epoch_size=st.integers(1, 10**12),
    seed=st.integers(0, 2**63 - 1),
)
def test_shares_add_up_and_are_off_by_less_than_one(proportions: list[float], epoch_size: int, seed: int) -> None:
    """The epoch has the wanted size, a weight of 0 leaves a stream out, and the seed decides where the rest goes."""
    if not any(proportions):
        proportions[0] = 1.0
    weights = [{"proportion": proportion} for proportion in proportions]
    sizes = (5,) * len(proportions)
    resolved = draws(sizes, *weights, epoch_size=epoch_size, seed=seed)
    assert resolved == draws(sizes, *weights, epoch_size=epoch_size, seed=seed)
    assert sum(resolved) == epoch_size
    for n, proportion in zip(resolved, proportions):
        assert abs(n - epoch_size * proportion / sum(proportions)) < 1.01
        assert proportion or not n


def test_the_rest_goes_to_any_stream() -> None:
    """Three equal streams share ten samples. The seed decides which of them gets four."""
    shares = {tuple(draws((5, 5, 5), *[{"proportion": 1}] * 3, epoch_size=10, seed=seed)) for seed in range(50)}
    assert shares == {(4, 3, 3), (3, 4, 3), (3, 3, 4)}


@pytest.mark.parametrize(
    "weight",
    [
        {"proportion": -0.1},
        {"proportion": float("nan")},
        {"repeat": float("inf")},
        {"repeat": -1},
        {"choose": -1},
        {"choose": 1.5},
        {"choose": True},
        {"repeat": "2"},
        {"proportion": 1, "repeat": 1},
        {"repeat": 1, "choose": 0},
    ],
)
def test_impossible_weights_are_refused_by_name(weight: dict[str, Any]) -> None:
    """Negative or infinite values, values that are no numbers, and two weights for one stream."""
    with pytest.raises(OptionError, match=next(iter(weight))):
        StreamWeight(**weight)


@pytest.mark.parametrize(
    ("sizes", "weights", "epoch_size", "message"),
    [
        ((5, 5), [{"proportion": 1}, {}], None, "stream 1"),
        ((5, 5), [{"proportion": 1}, {"repeat": 1}], None, "stream 1"),
        ((5, 5), [{"repeat": 1}, {}], 10, "epoch_size=10.*repeat"),
        ((5, 5), [{}, {"choose": 3}], 10, "epoch_size=10.*choose"),
        ((5, 5), [{"proportion": 0}, {"proportion": 0}], None, "all weights"),
        ((5, 5), [{"proportion": 0}, {"proportion": 0}], 10, "all weights"),
        ((5, 5), [{"repeat": 0}, {"choose": 0}], None, "all weights"),
        ((5, 5), [{"repeat": 0.1}, {"choose": 0}], None, "all weights"),
        ((5, 0), [{"proportion": 0.5}, {"proportion": 0.5}], None, "stream 1"),
        ((5, 0), [{}, {"repeat": 1}], None, "stream 1"),
        ((0, 0), [{}, {}], 10, "all weights"),
        ((5, 5), [{}], None, "2 streams"),
        ((5, 5), [{}, {}], -1, "epoch_size"),
        ((5, 5), [{}, {}], 1.5, "epoch_size"),
        ((5, 5), [{"choose": 2**62}, {}], None, "2\\*\\*62"),
    ],
)
def test_weights_that_cannot_be_honoured_are_refused(
    sizes: tuple[int, ...], weights: list[dict[str, Any]], epoch_size: Any, message: str
) -> None:
    """Proportions for some streams only, a fixed number beside an epoch size, and samples from empty streams."""
    with pytest.raises(OptionError, match=message):
        draws(sizes, *weights, epoch_size=epoch_size)


def test_a_stream_that_is_drawn_twice_comes_twice_evenly() -> None:
    """Streams of 900 and 100 samples, equal shares of 400: 200 of each, so every sample of the second twice."""
    data = catalog(900, 100)
    drawn = resolve_draws(data, [StreamWeight(proportion=0.5)] * 2, 400, seed=1)
    order = EpochOrder(OrderSpec(shuffle=True), data, 0, drawn)
    counts = np.bincount(order.take(0, 400), minlength=1000)
    assert counts[900:].tolist() == [2] * 100
    assert counts[:900].sum() == 200
    assert counts[:900].max() == 1
