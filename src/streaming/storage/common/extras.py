"""Optional packages: each is needed by one kind of store, and brought by an extra."""

from __future__ import annotations

import importlib
from typing import Any

from streaming.errors import MissingExtraError


def import_extra(module: str, *, package: str, extra: str, purpose: str) -> Any:
    """Import a module. Raises MissingExtraError, which names the extra that brings its package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package=package, extra=extra, purpose=purpose) from error
