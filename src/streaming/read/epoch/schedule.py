"""From settings to the epochs of a run: how many samples of each stream, in which order, in which batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order import (
    BATCHINGS,
    REMAINDERS,
    Catalog,
    EpochOrder,
    EpochPlan,
    OrderSpec,
    StreamWeight,
    Topology,
    resolve_draws,
)


class Schedule:
    """The epochs of a dataset. Immutable but for the orders that it keeps; shareable between threads.

    `weights`: one per stream. `epoch_size`: samples in an epoch, None for what the weights say. `batch_size`: needed
    where a batch comes from one stream, since the order then depends on it. Raises OptionError.
    """

    def __init__(
        self,
        spec: OrderSpec,
        catalog: Catalog,
        *,
        weights: Sequence[StreamWeight],
        epoch_size: int | None,
        remainder: str,
        batch_size: int | None,
    ) -> None:
        if remainder not in REMAINDERS:
            raise OptionError(f"remainder must be one of {', '.join(map(repr, REMAINDERS))}; got {remainder!r}")
        self._batching = BATCHINGS[spec.batching_method]
        if self._batching.takes_units and batch_size is None:
            raise OptionError(
                f"batching_method={spec.batching_method!r} orders whole batches: give the dataset its batch_size"
            )
        self.spec = spec
        self.catalog = catalog
        self.remainder = remainder
        self.draws: NDArray[np.int64] = resolve_draws(catalog, weights, epoch_size, spec.seed)
        self._batch_size = batch_size
        self._first: dict[int | None, EpochOrder] = {}

    def order(self, epoch: int, topology: Topology) -> EpochOrder:
        """The order of an epoch; only where a batch comes from one stream does it depend on the topology."""
        unit = self._unit(topology)
        if epoch:
            return EpochOrder(self.spec, self.catalog, epoch, self.draws, unit)
        order = self._first.get(unit)
        if order is None:
            order = self._first[unit] = EpochOrder(self.spec, self.catalog, 0, self.draws, unit)
        return order

    def plan(self, epoch: int, topology: Topology, batch_size: int, start: int = 0) -> EpochPlan:
        """Who gets what in an epoch of which `start` samples are spent."""
        return EpochPlan(self.order(epoch, topology), topology, batch_size, start=start, remainder=self.remainder)

    def _unit(self, topology: Topology) -> int | None:
        if self._batch_size is None or not self._batching.takes_units:
            return None
        return self._batch_size * (1 if self._batching.unit_goes_to_one_rank else topology.n_groups)
