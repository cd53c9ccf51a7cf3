"""How many bytes a second training takes on this machine, when it need not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from streaming.errors import ClosedError
from streaming.read.meter import Count, Meter

_ASK_AGAIN_S: Final = 0.1
_TELLS_WITHIN_S: Final = 5.0  # of the beginning: then training does something that takes long, and can wait
_LEAST_BATCHES: Final = 3


class Demand:
    """What the loader has counted, in bytes. For one thread.

    `n_ranks`: of this machine, each of which takes `batch_size` samples a step. `is_counted`: while this process reads
    and waits, by another.
    """

    def __init__(
        self, meter: Meter, batch_size: int, n_ranks: int, clock: Callable[[], float], *, is_counted: bool
    ) -> None:
        self._meter, self._n_samples, self._clock = meter, batch_size * n_ranks, clock
        self._asked_s = float("-inf")
        self._step_s: float | None = None
        self._ends_s = clock() + _TELLS_WITHIN_S if is_counted else float("-inf")

    @property
    def expected_within_s(self) -> float:
        """For how long it is worth while to wait until it is known."""
        return max(0.0, self._ends_s - self._clock())

    def bytes_per_s(self, sample_bytes: float) -> float | None:
        """For samples of this size. None: not known, as no `StreamingDataLoader` counts, or hardly a step was taken."""
        now_s = self._clock()
        if now_s - self._asked_s > _ASK_AGAIN_S:
            self._asked_s = now_s
            self._step_s = self._measured_s()
        if self._step_s is None:
            return None
        return self._n_samples * sample_bytes / max(1e-9, self._step_s)

    def _measured_s(self) -> float | None:
        try:
            reading = self._meter.reading()
        except ClosedError:  # workers may go on without their dataset
            return None
        return reading[Count.STEP_S] if reading[Count.BATCHES] >= _LEAST_BATCHES else None
