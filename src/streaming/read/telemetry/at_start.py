"""What a user sees on a terminal while a run waits for its first data."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from streaming.errors import StreamingError
from streaming.fetch.client import FetchClient
from streaming.read.telemetry.progress_bar import ProgressBar, is_terminal, shown
from streaming.read.telemetry.waits import Waits
from streaming.units import shown_bytes


def indexes_shown(
    waits: Waits, client: FetchClient, paths: Sequence[str]
) -> AbstractContextManager[ProgressBar | None]:
    """In the block, a terminal says how many of these files are there that are fetched in it."""
    wanted = [path for path in paths if not os.path.exists(path)] if is_terminal() else []
    if not wanted:
        return nullcontext()

    def progress() -> tuple[int, int]:
        return sum(map(os.path.exists, wanted)), len(wanted)

    return shown(waits, "fetching", "indexes", progress, _Rate(client))


def first_samples_shown(
    samples: Iterator[Any],
    n_samples: int,
    shards: Callable[[], Sequence[int]],
    is_present: Callable[[int], bool],
    waits: Waits,
    client: FetchClient,
) -> Iterator[Any]:
    """The same samples; while the first `n_samples` are waited for, a terminal says how many of `shards` are there."""
    if not is_terminal():
        return samples
    wanted: list[int] = []

    def progress() -> tuple[int, int]:
        if not wanted:  # planned once more, but only where it takes a second anyway
            wanted.extend(shards())
        return sum(map(is_present, wanted)), len(wanted)

    def first() -> Iterator[Any]:
        with shown(waits, "waiting for the first samples", "shards", progress, _Rate(client)) as bar:
            for sample in itertools.islice(samples, n_samples):
                bar.wipe()
                yield sample

    return itertools.chain(first(), samples)


class _Rate:
    """What this machine's fetcher has brought in a second, since it was asked last; in words."""

    def __init__(self, client: FetchClient) -> None:
        self._client = client
        self._last: tuple[float, int] | None = None
        self._words = ""

    def __call__(self) -> str:
        now_s = time.monotonic()
        if self._last is not None and now_s - self._last[0] < 0.5:
            return self._words
        try:
            numbers = self._client.status_if_any()
        except StreamingError:  # whoever waits will be told
            return self._words
        if numbers is not None:
            n_bytes = numbers["bytes"] + numbers["moving_bytes"]
            if self._last is not None:
                rate = max(0, n_bytes - self._last[1]) / (now_s - self._last[0])
                self._words = f"{shown_bytes(rate)}/s"
            self._last = now_s, n_bytes
        return self._words
