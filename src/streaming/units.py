"""Numbers in the form in which people write them: sizes in bytes, and counts of samples."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from fractions import Fraction
from numbers import Real
from typing import Any, Final

from streaming.errors import OptionError

_SIZES: Final = {
    "": 1,
    "b": 1,
    "kb": 1 << 10,
    "mb": 1 << 20,
    "gb": 1 << 30,
    "tb": 1 << 40,
    "pb": 1 << 50,
    "eb": 1 << 60,
    "zb": 1 << 70,
    "yb": 1 << 80,
}
_BYTE_STEPS: Final = {**_SIZES, **{f"{unit[0]}ib": step for unit, step in _SIZES.items() if len(unit) == 2}}
_COUNT_STEPS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER: Final = re.compile(r"(?P<whole>\d*)(?P<fraction>\.\d*)?\s*(?P<suffix>[a-z]*)", re.ASCII)
_ROUND: Final = re.compile(r"(\d+)(\.\d+)?e\+?\d{1,2}|\d+(_\d+)+", re.ASCII)


def parse_bytes(text: str | int | float, *, name: str | None = None) -> int:
    """Parse a size in bytes: `"64mb"`, `"1.5 GB"`, `".5 GiB"` or a plain number, in steps of 1024.

    A fraction needs a unit above the byte. `name`: the argument that holds it, for the error. Raises OptionError.

    >>> parse_bytes("64kb"), parse_bytes("1.5kb"), parse_bytes("100b"), parse_bytes(7.9)
    (65536, 1536, 100, 7)
    """
    return _parse(text, _BYTE_STEPS, kind="size in bytes", example="64mb", name=name)


def parse_count(text: str | int | float, *, name: str | None = None) -> int:
    """Parse a number of samples: `"64M"`, `"1.5 k"` or a plain number, in steps of 1000; `b` is 10⁹.

    A fraction needs a unit. `name`: the argument that holds it, for the error. Raises OptionError.

    >>> parse_count("64M"), parse_count("1.5k"), parse_count("2b"), parse_count(1e8)
    (64000000, 1500, 2000000000, 100000000)
    """
    return _parse(text, _COUNT_STEPS, kind="number of samples", example="64M", name=name)


def shown_bytes(n_bytes: float) -> str:
    """A size in bytes as text for people, in steps of 1024.

    >>> shown_bytes(65536), shown_bytes(1.5 * 2**30)
    ('64.0 KiB', '1.5 GiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min(len(units) - 1, int(math.log2(max(1.0, n_bytes))) // 10)
    return f"{n_bytes / 1024**step:,.{1 if step else 0}f} {units[step]}"


def _parse(text: object, steps: Mapping[str, int], *, kind: str, example: str, name: str | None) -> int:
    where = "" if name is None else f"{name}: "
    if not isinstance(text, str):
        return _plain(text, where, kind=kind, example=example)
    stripped = text.strip().lower()
    if _ROUND.fullmatch(stripped):  # "1e6", "1_000_000"
        exact = Fraction(stripped.replace("_", ""))
        if exact.denominator == 1:
            return int(exact)
    found = _NUMBER.fullmatch(stripped)
    step = steps.get(found["suffix"]) if found else None
    has_digits = found is not None and any(map(str.isdigit, stripped))
    if found is None or step is None or not has_digits or (found["fraction"] and step == 1):
        raise OptionError(
            f"{where}Unsupported value/suffix: {text!r} is not a {kind}; write a plain number or one such as "
            f"{example!r}"
        )
    whole = int(found["whole"] or 0) * step
    fraction = found["fraction"] or "."
    if len(fraction) > 1:  # in integers: 64-bit floats would round sizes above 2**53
        whole += int(fraction[1:]) * step // 10 ** len(fraction[1:])
    return whole


def _plain(number: Any, where: str, *, kind: str, example: str) -> int:
    """A number that is no text, of Python, numpy or PyTorch; a fraction is cut off."""
    wanted = f"write a plain number or one such as {example!r}"
    if isinstance(number, bool):
        raise OptionError(f"{where}Unsupported value: {number!r} is not a {kind}; {wanted}")
    try:
        return operator.index(number)
    except TypeError:  # a fraction, or no number at all
        if not isinstance(number, Real):
            raise OptionError(f"{where}Unsupported value: {number!r} is not a {kind}; {wanted}") from None
    if not math.isfinite(number):
        raise OptionError(f"{where}Unsupported value: a {kind} must be finite, got {number}")
    cut: Any = math.trunc(number)
    return cut if isinstance(cut, int) else operator.index(cut)
