"""The settings of a dataset's epochs, checked: those that may still be changed before the first of them begins."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any

from streaming.arguments import flag, text, whole
from streaming.errors import OptionError
from streaming.order import OrderSpec
from streaming.units import parse_count

_UNSET_BY_0 = ("num_canonical_nodes", "shuffle_block_size")  # 0 has always meant the default
_TEXTS = ("shuffle_algo", "batching_method", "sampling_method", "batch_composition", "remainder")


@dataclass(frozen=True, slots=True)
class DatasetSettings:
    """What a user sets of epochs, each under the name of the constructor's argument. None: the default.

    Raises OptionError for a value that cannot be meant.
    """

    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    num_canonical_nodes: int | None = None
    batching_method: str = "random"
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batch_composition: str = "proportional"
    epoch_size: int | None = None
    remainder: str = "pad"
    batch_size: int | None = None
    predownload: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            assert field.default is not MISSING
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, field.default if value is None else _checked(field.name, value))
        self.spec  # noqa: B018  raises for names that do not exist, and numbers out of range

    @property
    def spec(self) -> OrderSpec:
        """The settings that decide the order."""
        return OrderSpec(
            seed=self.shuffle_seed,
            shuffle=self.shuffle,
            shuffle_algo=self.shuffle_algo,
            num_canonical_nodes=self.num_canonical_nodes,
            shuffle_block_size=self.shuffle_block_size,
            batching_method=self.batching_method,
            sampling_method=self.sampling_method,
            sampling_granularity=self.sampling_granularity,
            batch_composition=self.batch_composition,
        )


def epoch_size_of(epoch_size: Any, samples_per_epoch: Any) -> int | None:
    """Samples in an epoch; None, 0 and "" leave that to the weights. The second name is an alias of the first."""
    sizes = {
        _epoch_size(name, size)
        for name, size in (("epoch_size", epoch_size), ("samples_per_epoch", samples_per_epoch))
        if size is not None
    }
    if len(sizes - {None}) > 1:
        raise OptionError(f"samples_per_epoch={samples_per_epoch!r} is another name of epoch_size={epoch_size!r}")
    return max((size for size in sizes if size is not None), default=None)


def _checked(name: str, value: Any) -> Any:
    if name == "shuffle":
        return flag(name, value)
    if name in _TEXTS:
        return text(name, value)
    if name == "epoch_size":
        return _epoch_size(name, value)
    if name == "batch_size":
        return whole(name, value, at_least=1, what="a number of samples")
    if name == "predownload":
        return whole(name, value, at_least=0, what="a number of samples")
    number = whole(name, value)
    return None if name in _UNSET_BY_0 and not number else number


def _epoch_size(name: str, value: Any) -> int | None:
    if isinstance(value, str) and not value.strip():
        return None
    size = parse_count(value, name=name)
    if size < 0 or (not isinstance(value, str) and size != value):
        raise OptionError(f"{name} must be a whole number of samples, 0 or more, got {value!r}")
    return size or None
