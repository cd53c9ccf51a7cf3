"""When the next bytes, and the next request, may pass. Time is an argument."""

from __future__ import annotations

from typing import Final

_UNSPENT_S: Final = 0.03  # of a road that lay idle; makes up for timers that ring late
_PIECE_S: Final = 0.002
_PIECE_BYTES: Final = (1 << 12, 1 << 18)
_UNPACED_BYTES: Final = 1 << 21


class Road:
    """Bytes of a limited rate. Who asks gets the next free stretch of time: sharers that ask in turn share evenly."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def wait_s(self, n_bytes: int, bytes_per_s: float | None, now_s: float) -> float:
        """Take the road for so many bytes; how long from now they must wait."""
        if bytes_per_s is None:
            return 0.0
        begin_s = max(self._free_s, now_s - _UNSPENT_S)
        self._free_s = begin_s + n_bytes / bytes_per_s
        return max(0.0, begin_s - now_s)


def piece_bytes(*rates: float | None) -> int:
    """How many bytes to send at a time, so that sharers of the slowest of these roads wait for each other shortly."""
    limited = [rate for rate in rates if rate is not None]
    if not limited:
        return _UNPACED_BYTES
    fewest, most = _PIECE_BYTES
    return max(fewest, min(most, int(min(limited) * _PIECE_S)))


class Gate:
    """Lets so many requests a second pass, and at most a second's worth at once."""

    def __init__(self) -> None:
        self._allowance: float | None = None
        self._since_s = 0.0

    def lets_pass(self, requests_per_s: float | None, now_s: float) -> bool:
        """Whether the request that came now may pass."""
        if requests_per_s is None:
            self._allowance = None
            return True
        most = max(1.0, requests_per_s)
        if self._allowance is None:
            self._allowance = most
        else:
            self._allowance = min(most, self._allowance + (now_s - self._since_s) * requests_per_s)
        self._since_s = now_s
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True
