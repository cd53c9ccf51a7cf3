"""How many samples each stream gives to an epoch.

All arithmetic is exact. A float stands for the decimal fraction it is written as (0.29 is 29/100). A product that
misses a whole number only by the rounding of its factors counts as that number: a third of 300 samples is 100.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.bits import Purpose, bits_between, derive_key
from streaming.order.catalog import Catalog

MOST_DRAWS: Final = 1 << 62
_ROUNDING: Final = Fraction(1, 1 << 50)
_MOST_ROUNDING: Final = Fraction(1, 1 << 10)


@dataclass(frozen=True, slots=True)
class StreamWeight:
    """How much of a stream an epoch takes. At most one field may be given; with none, the stream comes once.

    `proportion`: a share relative to the other streams. `repeat`: a multiple of the stream. `choose`: a number of
    samples. Zero leaves the stream out. Raises OptionError if a value is negative or not a number.
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("proportion", "repeat", "choose") if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(f"a stream has at most one weight, got {' and '.join(given)}")
        for name in given:
            value: Any = getattr(self, name)
            kind: type = numbers.Integral if name == "choose" else numbers.Real
            if isinstance(value, bool | np.bool_) or not isinstance(value, kind):
                wanted = "a whole number" if name == "choose" else "a number"
                raise OptionError(f"{name} must be {wanted}, got {value!r}")
            number: Any = value
            if not 0 <= number < float("inf"):
                raise OptionError(f"{name} must be 0 or more and finite, got {value!r}")

    @property
    def is_absolute(self) -> bool:
        """Whether the weight fixes the number of samples."""
        return self.repeat is not None or self.choose is not None

    @property
    def is_positive(self) -> bool:
        """Whether the weight is given and above zero."""
        return any((self.proportion, self.repeat, self.choose))


def one_pass(catalog: Catalog) -> NDArray[np.int64]:
    """Return the draws of an epoch that takes every stream once: its number of samples, int64 (stream,)."""
    return catalog.samples_per_stream


def resolve_draws(
    catalog: Catalog, weights: Sequence[StreamWeight], epoch_size: int | None, seed: int
) -> NDArray[np.int64]:
    """Return the number of samples that each stream gives to an epoch, int64 (stream,).

    - With proportions, which every stream must then have, streams share `epoch_size` samples (all samples if None
      or 0). Shares are rounded down; the samples left over go to distinct streams in keyed order.
    - Without any weight, `epoch_size` is shared in proportion to the sizes of the streams.
    - Otherwise `repeat` or `choose` fixes the number, or the stream comes once; `epoch_size` must not be given.

    Raises OptionError if the weights cannot be honoured.
    """
    if len(weights) != catalog.n_streams:
        raise OptionError(f"there are {catalog.n_streams} streams, but {len(weights)} weights")
    sizes = catalog.samples_per_stream.tolist()
    total = _checked_size(epoch_size)
    for number, (weight, size) in enumerate(zip(weights, sizes)):
        if weight.is_positive and not size:
            raise OptionError(f"stream {number} has a weight but no samples; set its weight to 0 or leave it out")
    proportions = [weight.proportion for weight in weights]
    absolute = [number for number, weight in enumerate(weights) if weight.is_absolute]
    if any(proportion is not None for proportion in proportions):
        if None in proportions:
            raise OptionError(
                f"stream {proportions.index(None)} has no proportion but others have; "
                "give every stream a proportion, or none"
            )
        draws = _shares(total or sum(sizes), [_fraction(p) for p in proportions if p is not None], seed)
    elif total and absolute:
        raise OptionError(
            f"epoch_size={total} cannot be kept: stream {absolute[0]} fixes its number of samples by "
            f"{'repeat' if weights[absolute[0]].repeat is not None else 'choose'}; use proportion, or no epoch_size"
        )
    elif total:
        draws = _shares(total, [Fraction(size) for size in sizes], seed)
    else:
        draws = [_absolute(weight, size) for weight, size in zip(weights, sizes)]
    if not any(draws) and (absolute or total):
        raise OptionError("no stream gives any sample to an epoch: all weights come to 0")
    if sum(draws) >= MOST_DRAWS:
        raise OptionError(
            f"an epoch would have {sum(draws)} samples, the limit is 2**62; lower epoch_size or the weights"
        )
    return np.array(draws, np.int64)


def checked_draws(catalog: Catalog, draws: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the draws as a read-only int64 (stream,). Raises OptionError if a stream cannot give them."""
    draws = np.array(draws)
    if draws.shape != (catalog.n_streams,) or (draws.size and draws.dtype.kind not in "iu"):
        raise OptionError(f"draws must be {catalog.n_streams} whole numbers, one for each stream, got {draws!r}")
    if draws.size and int(draws.min()) < 0:
        raise OptionError(f"draws of stream {int(draws.argmin())} must be 0 or more, got {int(draws.min())}")
    hollow = np.flatnonzero((draws > 0) & (catalog.samples_per_stream == 0))
    if hollow.size:
        raise OptionError(
            f"stream {int(hollow[0])} is to give {int(draws[hollow[0]])} samples but has none; "
            "set its weight to 0 or leave it out"
        )
    draws = draws.astype(np.int64)
    draws.flags.writeable = False
    return draws


def _checked_size(epoch_size: object) -> int:
    if epoch_size is None:
        return 0
    if isinstance(epoch_size, bool) or not isinstance(epoch_size, numbers.Integral) or epoch_size < 0:
        raise OptionError(f"epoch_size must be a whole number of samples, 0 or more, got {epoch_size!r}")
    return int(epoch_size)


def _shares(total: int, proportions: list[Fraction], seed: int) -> list[int]:
    """Divide `total` in these proportions: rounded down, then one more for distinct streams among those rounded."""
    whole = sum(proportions)
    if not whole:
        raise OptionError("no stream gives any sample to an epoch: all weights are 0")
    shares = [_freed_of_rounding(total * proportion / whole) for proportion in proportions]
    draws = [int(share) for share in shares]
    cut = [number for number, share in enumerate(shares) if share.denominator > 1]
    keyed = bits_between(derive_key(seed, Purpose.WEIGHTS), 0, len(shares)).tolist()
    for number in sorted(cut, key=lambda number: (keyed[number], number))[: total - sum(draws)]:
        draws[number] += 1
    return draws


def _absolute(weight: StreamWeight, size: int) -> int:
    if weight.choose is not None:
        return int(weight.choose)
    if weight.repeat is not None:
        return int(_freed_of_rounding(_fraction(weight.repeat) * size))
    return size


def _fraction(value: Any) -> Fraction:
    """Return the fraction that a number is written as; numpy's floats are written at their own width."""
    if isinstance(value, numbers.Rational):
        return Fraction(int(value.numerator), int(value.denominator))  # numpy's integers would overflow
    return Fraction(str(value))


def _freed_of_rounding(share: Fraction) -> Fraction:
    """Return the whole number that a share misses only by the rounding of floats, else the share itself."""
    nearest = round(share)
    rounding = min(share * _ROUNDING, _MOST_ROUNDING)
    return Fraction(nearest) if abs(share - nearest) <= rounding else share
