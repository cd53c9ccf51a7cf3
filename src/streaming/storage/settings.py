"""What a store is opened with, and the type of the functions that open one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.storage.store import Store
from streaming.storage.url import Bucket


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How to use a store of any kind. Holds secrets, which its `repr` does not show."""

    options: Mapping[str, Any] = field(repr=False)  # the stream's storage_options: JSON values, not yet checked
    environment: Mapping[str, str] = field(repr=False)
    timeout_s: float  # for how long nothing may come; one request gets a share of it
    for_uploads: bool = False


Opener = Callable[[Bucket, StoreSettings], Store]
"""Opens the store at a URL."""
