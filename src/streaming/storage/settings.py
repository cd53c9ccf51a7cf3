"""How a store is to be reached, apart from where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What an opener is given beside the location."""

    options: Mapping[str, Any]  # of the stream (`storage_options`); JSON values
    environment: Mapping[str, str]
    timeout_s: float  # how long nothing may come
    for_uploads: bool = False
