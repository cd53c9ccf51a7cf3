"""Stream training data from object storage, in an order that no hardware changes.

Names are imported on first use, so `import streaming` loads neither torch nor the client of any object store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from streaming._version import __version__

if TYPE_CHECKING:
    from streaming.dataloader import StreamingDataLoader
    from streaming.dataset import StreamingDataset
    from streaming.local import LocalDataset
    from streaming.read.telemetry.bottleneck import WaitRules
    from streaming.stream import Stream
    from streaming.world import World
    from streaming.write.writers import MDSWriter

_HOMES: Final = {
    "LocalDataset": "streaming.local",
    "MDSWriter": "streaming.write.writers",
    "Stream": "streaming.stream",
    "StreamingDataLoader": "streaming.dataloader",
    "StreamingDataset": "streaming.dataset",
    "WaitRules": "streaming.read.telemetry.bottleneck",
    "World": "streaming.world",
}

__all__ = [
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "WaitRules",
    "World",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'streaming' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
