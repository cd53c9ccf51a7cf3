"""Files wanted by accounts, as plain as a ledger of transfers takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Wanted(NamedTuple):
    """A file, and the account that wants it."""

    key: str
    account: str = "me"


def absent(names: Iterable[str], account: str = "me") -> list[tuple[Wanted, bool]]:
    """A list of files that are not on disk."""
    return [(Wanted(name, account), False) for name in names]
