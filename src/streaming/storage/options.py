"""What `storage_options` a scheme takes: asked for by name and type; what is left over is an error, never ignored."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from streaming.errors import MissingExtraError, OptionError


def check_names(options: Mapping[str, Any], known: Iterable[str], scheme: str) -> None:
    """OptionError if there is an option that stores of this scheme do not take."""
    names = sorted(known)
    unknown = sorted(set(options) - set(names))
    if unknown:
        takes = f"takes {', '.join(names)}" if names else "takes none"
        raise OptionError(f"storage_options of {scheme}:// {takes}; got {', '.join(map(repr, unknown))}")


def text_option(options: Mapping[str, Any], name: str) -> str | None:
    """The option's text, None if it is not given or empty."""
    value = options.get(name)
    if value is None or isinstance(value, str):
        return value or None
    raise OptionError(f"the storage option {name!r} must be a text, got {type(value).__name__}")


def count_option(options: Mapping[str, Any], name: str, default: int, *, at_most: int) -> int:
    """A whole number from 1 on."""
    value = options.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= at_most:
        return value
    raise OptionError(f"the storage option {name!r} must be a whole number from 1 to {at_most}, got {value!r}")


def first_set(environment: Mapping[str, str], *names: str) -> str | None:
    """The value of the first of these variables that has one."""
    return next((value for name in names if (value := environment.get(name))), None)


def home(environment: Mapping[str, str]) -> str:
    """The user's folder as `environment` has it, else as the system has it."""
    import os

    return environment.get("HOME") or os.path.expanduser("~")


def imported(module: str, *, package: str, extra: str, purpose: str) -> Any:
    """An optional package's module. Raises MissingExtraError, which names the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package=package, extra=extra, purpose=purpose) from error
