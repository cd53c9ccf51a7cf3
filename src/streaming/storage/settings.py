"""What opens a store, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.storage.store import Store
from streaming.storage.url import Bucket


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a store is to be asked, whatever it is. Holds secrets, which `repr` does not show."""

    options: Mapping[str, Any] = field(repr=False)  # storage_options of the stream: JSON values, not yet checked
    environment: Mapping[str, str] = field(repr=False)
    timeout_s: float  # how long nothing may come
    for_uploads: bool = False


Opener = Callable[[Bucket, StoreSettings], Store]
