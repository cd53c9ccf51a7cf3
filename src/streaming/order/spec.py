"""The settings that decide the order. A spec that exists is valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from streaming.errors import OptionError
from streaming.order.batching.table import BATCHINGS, COMPOSITIONS
from streaming.order.shuffle.table import SHUFFLES
from streaming.order.sub_orders.sampling import SAMPLINGS

MOST_CANONICAL_NODES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """How an epoch is ordered. Together with a catalog and an epoch number it determines the whole order.

    `None` for `num_canonical_nodes` or `shuffle_block_size` means the default, which depends on the data alone.
    Raises OptionError for an invalid value.
    """

    seed: int = 9176
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    num_canonical_nodes: int | None = None
    shuffle_block_size: int | None = None
    batching_method: str = "random"
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batch_composition: str = "proportional"

    def __post_init__(self) -> None:
        if not isinstance(self.shuffle, bool | np.bool_):
            raise OptionError(f"shuffle must be True or False, got {self.shuffle!r}")
        object.__setattr__(self, "shuffle", bool(self.shuffle))
        self._keep_whole("seed", "shuffle_seed", at_least=0, below=1 << 63)
        if self.num_canonical_nodes is not None:
            self._keep_whole("num_canonical_nodes", at_least=1, below=MOST_CANONICAL_NODES + 1)
        if self.shuffle_block_size is not None:
            self._keep_whole("shuffle_block_size", at_least=1, below=1 << 62)
        self._keep_whole("sampling_granularity", at_least=1, below=1 << 62)
        _check_name("shuffle_algo", self.shuffle_algo, tuple(SHUFFLES))
        _check_name("batching_method", self.batching_method, tuple(BATCHINGS))
        _check_name("sampling_method", self.sampling_method, SAMPLINGS)
        _check_name("batch_composition", self.batch_composition, COMPOSITIONS)
        if self.batch_composition == "exact" and self.batching_method != "stratified":
            raise OptionError(
                "batch_composition='exact' needs batching_method='stratified', in which every batch holds samples of "
                f"every stream; got batching_method={self.batching_method!r}"
            )

    @property
    def batches(self) -> str:
        """What decides how batches are laid out, as the user set it."""
        exact = self.batch_composition == "exact"
        return "batch_composition='exact'" if exact else f"batching_method={self.batching_method!r}"

    def _keep_whole(self, field: str, setting: str | None = None, *, at_least: int, below: int) -> None:
        """Check a whole number and store it as a plain int, so that specs compare and serialise alike."""
        value = getattr(self, field)
        setting = setting or field
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise OptionError(f"{setting} must be a whole number, got {value!r}")
        if not at_least <= value < below:
            raise OptionError(f"{setting} must be {at_least} or more and below {below}, got {value}")
        object.__setattr__(self, field, int(value))


def _check_name(setting: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise OptionError(
            f"Invalid {setting.replace('_', ' ')}: {name!r}; {setting} must be one of {', '.join(map(repr, known))}"
        )
