"""Which bytes are fetched without their file, and when the file itself is the better choice: pure decisions.

A range costs a request, and 10⁹ samples by range cost ten thousand times the requests of whole shards. So ranges of one
file that lie close are joined; there is a budget of requests, of which who asks too often must wait, or is refused if
the file would be there sooner; and a file of which much has been asked for is fetched whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

F = TypeVar("F", bound=Hashable)

_MAX_FILES: Final = 100_000  # whose asking is remembered


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """What ranges may cost a machine."""

    at_once: int = 48  # requests under way; with the transfers of whole files 64 connections
    per_s: float = 200.0  # requests
    burst: float = 2048.0  # after a while without: the first batches of an epoch come this way
    gap_bytes: int = 256 << 10  # what lies between two ranges is fetched too if it is less
    longest_bytes: int = 16 << 20  # of one request
    whole_share: float = 0.5  # of a file's bytes, after which it is fetched whole
    whole_ranges: int = 500


@dataclass(frozen=True, slots=True)
class Joined:
    """One request: its bytes, and which of the spans it serves."""

    begin: int
    end: int
    members: tuple[int, ...]


def joined(spans: Sequence[tuple[int, int]], limits: RangeLimits) -> list[Joined]:
    """Requests that cover all spans (begin, end), each span by one of them."""
    requests: list[Joined] = []
    order = sorted(range(len(spans)), key=lambda number: spans[number])
    for number in order:
        begin, end = spans[number]
        last = requests[-1] if requests else None
        if (
            last is not None
            and begin - last.end < limits.gap_bytes
            and max(last.end, end) - last.begin <= limits.longest_bytes
        ):
            requests[-1] = Joined(last.begin, max(last.end, end), (*last.members, number))
        else:
            requests.append(Joined(begin, end, (number,)))
    return requests


class RangePolicy(Generic[F]):
    """The budget of ranges, and what has been asked of which file. Not thread-safe."""

    def __init__(self, limits: RangeLimits, now_s: float) -> None:
        self.limits = limits
        self._tokens, self._counted_s = limits.burst, now_s
        self._asked: OrderedDict[F, tuple[int, int]] = OrderedDict()  # file → bytes, ranges

    def spend(self, n_requests: int, now_s: float, *, longest_s: float) -> float | None:
        """Take so many requests from the budget: in how many seconds they may go. None: they may not.

        The budget may be overdrawn, and who does so waits until it is made up for; who would not wait so long, but
        only `longest_s`, is refused and spends nothing.
        """
        limits = self.limits
        self._tokens = min(limits.burst, self._tokens + max(0.0, now_s - self._counted_s) * limits.per_s)
        self._counted_s = max(self._counted_s, now_s)
        wait_s = max(0.0, (n_requests - self._tokens) / limits.per_s)
        if wait_s > longest_s:
            return None
        self._tokens -= n_requests
        return wait_s

    def asked(self, file: F, n_file_bytes: int, n_bytes: int, n_ranges: int) -> bool:
        """Note what was asked of a file (of -1 bytes if nobody knows); whether it is now to be fetched whole.

        Said once, and again only after as much more was asked: then it did not come, or has gone again.
        """
        before, n_before = self._asked.pop(file, (0, 0))
        n_bytes, n_ranges = before + n_bytes, n_before + n_ranges
        if n_ranges >= self.limits.whole_ranges or 0 <= self.limits.whole_share * n_file_bytes <= n_bytes:
            return True
        self._asked[file] = n_bytes, n_ranges
        while len(self._asked) > _MAX_FILES:
            self._asked.popitem(last=False)
        return False
