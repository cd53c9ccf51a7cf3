"""Numbers in the form in which people write them: sizes in bytes, and counts of samples."""

from __future__ import annotations

import math
import re
from typing import Final

from streaming.errors import OptionError

_BYTE_STEPS: Final = {
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
_COUNT_STEPS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER: Final = re.compile(r"(?P<whole>\d+)(?P<fraction>\.\d*)?(?P<suffix>[a-z]*)", re.ASCII)


def parse_bytes(text: str | int | float) -> int:
    """Parse a size in bytes: `"64mb"`, `"1.5gb"` or a plain number, in steps of 1024.

    A fraction needs a unit above the byte. Raises OptionError.

    >>> parse_bytes("64kb"), parse_bytes("1.5kb"), parse_bytes("100b"), parse_bytes(7.9)
    (65536, 1536, 100, 7)
    """
    return _parse(text, _BYTE_STEPS, kind="size in bytes", example="64mb")


def parse_count(text: str | int | float) -> int:
    """Parse a number of samples: `"64M"`, `"1.5k"` or a plain number, in steps of 1000; `b` is 10⁹.

    A fraction needs a unit. Raises OptionError.

    >>> parse_count("64M"), parse_count("1.5k"), parse_count("2b"), parse_count(1e8)
    (64000000, 1500, 2000000000, 100000000)
    """
    return _parse(text, _COUNT_STEPS, kind="number of samples", example="64M")


def shown_bytes(n_bytes: float) -> str:
    """A size in bytes as text for people, in steps of 1024.

    >>> shown_bytes(65536), shown_bytes(1.5 * 2**30)
    ('64.0 KiB', '1.5 GiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min(len(units) - 1, int(math.log2(max(1.0, n_bytes))) // 10)
    return f"{n_bytes / 1024**step:,.{1 if step else 0}f} {units[step]}"


def _parse(text: str | int | float, steps: dict[str, int], *, kind: str, example: str) -> int:
    if isinstance(text, int | float):
        if isinstance(text, float) and not math.isfinite(text):
            raise OptionError(f"Unsupported value: a {kind} must be finite, got {text}")
        return int(text)
    found = _NUMBER.fullmatch(text.strip().lower())
    step = steps.get(found["suffix"]) if found else None
    if found is None or step is None or (found["fraction"] and step == 1):
        raise OptionError(
            f"Unsupported value/suffix: {text!r} is not a {kind}; write a plain number or one such as {example!r}"
        )
    whole = int(found["whole"]) * step
    fraction = found["fraction"] or "."
    if len(fraction) > 1:  # in integers: 64-bit floats would round sizes above 2**53
        whole += int(fraction[1:]) * step // 10 ** len(fraction[1:])
    return whole
