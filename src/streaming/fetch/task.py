"""What a transfer is to bring, and how far it is."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from streaming.cache.files import is_present
from streaming.errors import StorageError
from streaming.fetch.attempts import Patience
from streaming.fetch.protocol import FileNeed, StreamConfig
from streaming.storage.url import parse_remote


@dataclass(frozen=True, slots=True)
class FileTask:
    """One file to be in the cache. Equal if it is the same file of the same source, whoever asks and how."""

    remote: str
    local: str
    name: str
    need: FileNeed = field(compare=False)
    config: StreamConfig = field(compare=False)

    @classmethod
    def of(cls, need: FileNeed, config: StreamConfig) -> FileTask:
        """The task that a client's need means."""
        return cls(config.remote, config.local, need.name, need, config)

    @property
    def path(self) -> str:
        """Where the file will lie."""
        return os.path.join(self.local, self.name)

    @property
    def shown(self) -> str:
        """Where it comes from, for people: without secrets."""
        return f"{self.shown_remote}/{self.name}"

    @property
    def shown_remote(self) -> str:
        """The remote, for people: without secrets."""
        return parse_remote(self.remote).shown

    @property
    def disk_bytes(self) -> int:
        """What it takes on disk at most, while it comes and afterwards; 0 if nobody knows."""
        kept = self.need.zip_bytes if self.config.keep_zip and self.need.zip_name is not None else 0
        return max(0, self.need.n_bytes) + max(0, kept)

    @property
    def patience(self) -> Patience:
        """What its user allows."""
        return Patience(self.config.download_retry, self.config.download_timeout)

    def is_done(self) -> bool:
        """Whether it lies there, whole."""
        return is_present(self.path, self.need.n_bytes)


class AbandonedError(StorageError):
    """A transfer was given up because nobody wanted the file any more. Never reaches a client."""


class Moved:
    """How far a transfer is: a number that grows, written by its thread and read by others."""

    def __init__(self) -> None:
        self.is_wanted = True  # written by others: what nobody wants any more is given up
        self.n_bytes = 0
        self.n_attempts = 0
        self.began_s = time.monotonic()

    @property
    def token(self) -> str:
        """Differs from any earlier one if anything has moved."""
        return f"{self.n_attempts}:{self.n_bytes}"

    def left_s(self, n_bytes: int) -> float:
        """In how many seconds `n_bytes` will have come, at the rate so far."""
        n_left, passed_s = n_bytes - self.n_bytes, time.monotonic() - self.began_s
        return n_left * passed_s / self.n_bytes if self.n_bytes else float("inf")
