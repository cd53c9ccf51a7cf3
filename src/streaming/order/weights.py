"""How many samples each stream gives to an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming.errors import OptionError
from streaming.order.catalog import Catalog


def one_pass(catalog: Catalog) -> NDArray[np.int64]:
    """Every stream once: its number of samples, int64 (stream,)."""
    return catalog.samples_per_stream


def checked_draws(catalog: Catalog, draws: NDArray[np.int64]) -> NDArray[np.int64]:
    """The draws of each stream, read-only int64 (stream,). Raises OptionError where a stream cannot give them."""
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
