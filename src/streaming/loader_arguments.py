"""Settings of the order that are given to a loader, and belong to the dataset."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from streaming.errors import OptionError

_SETTINGS: Final = {
    "shuffle": "the dataset shuffles: StreamingDataset(shuffle=True, ...)",
    "sampler": "the dataset decides which samples come and in which order: give it shuffle=, shuffle_algo= and "
    "epoch_size=, and weights to its streams. To read samples of your choice, index it: dataset[[3, 1, 4]]",
    "batch_sampler": "the dataset decides what a batch holds: StreamingDataset(batch_size=..., batching_method=...)",
}
_POSITIONS: Final = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")


def refuse_settings(given: Mapping[str, Any]) -> None:
    """Raise OptionError, which names the dataset's own setting, for a loader's argument that would decide the order."""
    for name, remedy in _SETTINGS.items():
        value = given.get(name)
        if value is not None and value is not False:
            raise OptionError(f"{name}= of a loader has no place over a StreamingDataset; {remedy}")


def named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The first arguments of PyTorch's loader by name, however they were given."""
    return {**dict(zip(_POSITIONS, args)), **kwargs}


class RefusesSettings:
    """Makes PyTorch's own loader refuse such arguments in our words, where it can be seen that it is asking.

    Its constructor asks a dataset nothing but its class (as `isinstance` does), before it refuses them in words that
    name no remedy. Where that is not how it goes, its own error stays.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        torch_data: Any = sys.modules.get("torch.utils.data")
        frame: Any = sys._getframe(1)
        for _ in range(2):  # the constructor, or `isinstance` of abstract classes that it has called
            if torch_data and frame and frame.f_code is torch_data.DataLoader.__init__.__code__:
                refuse_settings(frame.f_locals)
            frame = frame and frame.f_back
        return type(self)
