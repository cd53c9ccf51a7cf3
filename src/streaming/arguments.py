"""Arguments in the forms in which people write them: what is unambiguous is taken, all else raises and is named.

Each function takes the argument's name for its error. Whole numbers may come from numpy, PyTorch, a configuration file
or the command line; so 8, np.int64(8), torch.tensor(8), 8.0 and "8" are all eight.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from streaming.errors import OptionError

_DIGITS: Final = re.compile(r"\s*[+-]?\d+(_\d+)*\s*", re.ASCII)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FLATTENED_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def whole(name: str, value: Any, *, at_least: int | None = None, what: str = "a whole number") -> int:
    """A whole number, also as a float without a fraction or as digits. Raises OptionError."""
    number = _whole_or_none(value)
    wanted = what if at_least is None else f"{what}, {at_least} or more"
    if number is None or (at_least is not None and number < at_least):
        raise OptionError(f"{name} must be {wanted}, not {value!r}")
    return number


def is_truth(value: Any) -> bool:
    """Whether a value is a bool, in Python or as an array or tensor without axes."""
    return isinstance(value, bool | np.bool_) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _whole_or_none(value: Any) -> int | None:
    if is_truth(value):
        return None
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else None
    if isinstance(value, float | np.floating):
        return int(value) if math.isfinite(value) and value == int(value) else None
    try:
        return operator.index(value)
    except TypeError:
        return None


def flag(name: str, value: Any) -> bool:
    """True or False, also as numpy's or as 1 and 0; no text, since "False" would count as true. Raises OptionError."""
    if is_truth(value) and not getattr(value, "ndim", 0):
        return bool(value)
    number = None if isinstance(value, str) else _whole_or_none(value)
    if number not in (0, 1):
        raise OptionError(f"{name} must be True or False, not {value!r}")
    return bool(number)


def seconds(name: str, value: Any) -> float:
    """A finite number of seconds above 0, also as digits. Raises OptionError."""
    number = math.nan
    if not is_truth(value):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if not 0 < number < math.inf:
        raise OptionError(f"{name} must be a number of seconds above 0, not {value!r}")
    return number


def text(name: str, value: Any) -> str:
    """A text, such as the name of an algorithm. Raises OptionError."""
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a text, not {value!r}")
    return str(value)


def path(name: str, value: Any) -> str | None:
    """The text of a path; None where none is given, which "" means too. Raises OptionError for another type."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise OptionError(f"{name} must be a text or a path, not {value!r}")
    found = os.fspath(value)
    if not isinstance(found, str):
        raise OptionError(f"{name} must be text, not bytes: {value!r}")
    try:
        is_path = b"\0" not in os.fsencode(found)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise OptionError(f"{name} holds characters that no path can hold: {value!r}")
    return str(found) or None


def folder(name: str, value: Any) -> str | None:
    """As `path`, for a folder of this machine: a URL raises OptionError."""
    found = path(name, value)
    if found is not None and (_URL.match(found) or (isinstance(value, PurePath) and _FLATTENED_URL.match(found))):
        raise OptionError(f"{name}={found!r} is a URL, and {name} is a folder of this machine; give the URL as remote=")
    return found


def place(name: str, value: Any) -> str | None:
    """As `path`, for a URL or a folder. A pathlib.Path that has swallowed a slash of a URL raises OptionError."""
    found = path(name, value)
    if found is not None and isinstance(value, PurePath) and _FLATTENED_URL.match(found):
        raise OptionError(f"{name}={value!r}: a Path cannot hold a URL, since it drops one of its slashes; give a text")
    return found


def mapping(name: str, value: Any) -> Mapping[str, Any] | None:
    """A mapping with texts as keys, or None. Raises OptionError, without a value, which may be secret."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise OptionError(f"{name} must be a dict of names to values, not a {type(value).__name__}")
    return value
