"""Rate limits: when the next bytes, and the next request, may pass. Time is an argument."""

from __future__ import annotations

from typing import Final

_BURST_S: Final = 0.03  # unused time that may be caught up; compensates for timers that fire late
_PIECE_S: Final = 0.002
_PIECE_BYTES: Final = (1 << 12, 1 << 18)
_UNPACED_BYTES: Final = 1 << 21


class ByteRateLimiter:
    """Hands out consecutive periods of time, so connections that ask in turn get equal shares of the rate."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def wait_s(self, n_bytes: int, bytes_per_s: float | None, now_s: float) -> float:
        """Reserve `n_bytes`; return how long the caller must wait before it sends them."""
        if bytes_per_s is None:
            return 0.0
        begin_s = max(self._free_s, now_s - _BURST_S)
        self._free_s = begin_s + n_bytes / bytes_per_s
        return max(0.0, begin_s - now_s)


def piece_bytes(*rates: float | None) -> int:
    """Bytes to send at a time: small enough that connections limited to the slowest of these rates alternate."""
    limited = [rate for rate in rates if rate is not None]
    if not limited:
        return _UNPACED_BYTES
    fewest, most = _PIECE_BYTES
    return max(fewest, min(most, int(min(limited) * _PIECE_S)))


class RequestRateLimiter:
    """A token bucket that holds one second's worth of requests."""

    def __init__(self) -> None:
        self._tokens: float | None = None
        self._since_s = 0.0

    def admits(self, requests_per_s: float | None, now_s: float) -> bool:
        """Whether the request that has just arrived may pass."""
        if requests_per_s is None:
            self._tokens = None
            return True
        most = max(1.0, requests_per_s)
        if self._tokens is None:
            self._tokens = most
        else:
            self._tokens = min(most, self._tokens + (now_s - self._since_s) * requests_per_s)
        self._since_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
