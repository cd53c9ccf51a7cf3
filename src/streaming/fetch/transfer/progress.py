"""How far a transfer is: written by its thread, read by others."""

from __future__ import annotations

import time

from streaming.errors import StorageError


class AbandonedError(StorageError):
    """A transfer was given up because nobody wanted the file any more. It never reaches a client."""


class TransferProgress:
    """Numbers that grow while something moves."""

    def __init__(self) -> None:
        self.is_wanted = True  # written by others: a transfer that nobody wants any more is given up
        self.n_bytes = 0
        self.n_attempts = 0
        self.began_s = time.monotonic()
        self._parts: list[TransferProgress] = []

    def include(self, part: TransferProgress) -> None:
        """Count the progress of something shared, which others may have begun, as this one's own."""
        self._parts.append(part)

    def reached(self, n_bytes: int) -> None:
        """`n_bytes` have moved in all."""
        self.n_bytes = n_bytes

    @property
    def token(self) -> str:
        """A text that differs from any earlier one if anything has moved."""
        everything = [self, *self._parts]
        return f"{sum(each.n_attempts for each in everything)}:{sum(each.n_bytes for each in everything)}"

    def left_s(self, n_bytes: int) -> float:
        """Seconds until `n_bytes` have come, at the rate so far."""
        n_left, passed_s = n_bytes - self.n_bytes, time.monotonic() - self.began_s
        return n_left * passed_s / self.n_bytes if self.n_bytes else float("inf")
