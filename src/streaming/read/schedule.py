"""From settings to the epochs of a run: how many samples of each stream, in which order, in which batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, StreamWeight, Topology, resolve_draws
from streaming.order.plan import REMAINDERS


class Schedule:
    """The epochs of a dataset. Immutable but for the orders that it keeps; shareable between threads.

    `weights`: one per stream. `epoch_size`: samples in an epoch, None for what the weights say. Raises OptionError.
    """

    def __init__(
        self,
        spec: OrderSpec,
        catalog: Catalog,
        *,
        weights: Sequence[StreamWeight],
        epoch_size: int | None,
        remainder: str,
    ) -> None:
        if remainder not in REMAINDERS:
            raise OptionError(f"remainder must be one of {', '.join(map(repr, REMAINDERS))}; got {remainder!r}")
        self.spec = spec
        self.catalog = catalog
        self.remainder = remainder
        self.draws: NDArray[np.int64] = resolve_draws(catalog, weights, epoch_size, spec.seed)
        self._first_order = EpochOrder(spec, catalog, 0, self.draws)

    def order(self, epoch: int) -> EpochOrder:
        """The order of an epoch."""
        return EpochOrder(self.spec, self.catalog, epoch, self.draws) if epoch else self._first_order

    def plan(self, epoch: int, topology: Topology, batch_size: int, start: int = 0) -> EpochPlan:
        """Who gets what in an epoch of which `start` samples are spent."""
        return EpochPlan(self.order(epoch), topology, batch_size, start=start, remainder=self.remainder)


def rank_samples(plan: EpochPlan, rank: int) -> int:
    """Samples that a rank gets from a plan: only the last batch may be short."""
    last = plan.n_batches - 1
    return 0 if last < 0 else last * plan.batch_size + len(plan.batch_positions(last, rank))
