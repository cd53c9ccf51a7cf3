"""Telling the fetcher which shards a reader will need, in order of first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from streaming.fetch.client import FetchClient
from streaming.read.shard_files import ShardFiles

_MAX_ANNOUNCED: Final = 1024


class ReadAhead:
    """One reader's announcements: renewed when half of the last list is on disk, or when it no longer covers.

    `reader` names this reader in its job. `horizon(position)` gives the shards that this machine needs at or after a
    position and on into the next epoch, in order of first use; None to announce only what is planned exactly.
    Says nothing, and starts no fetcher, while everything needed is on disk.
    """

    def __init__(
        self,
        client: FetchClient,
        files: ShardFiles,
        reader: str,
        horizon: Callable[[int], Iterable[int]] | None,
    ) -> None:
        self._client = client
        self._files = files
        self._reader = reader
        self._horizon = horizon
        self._announced: set[int] = set()
        self._is_exhaustive = False  # whether nothing is missing beyond the last list

    def advance(self, planned: list[int], position: int) -> None:
        """The next shards to be read are `planned`, in this order; the rest of the epoch begins at `position`."""
        missing = [shard for shard in planned if not self._files.is_present(shard)]
        if self._covers(missing):
            return
        rest = self._horizon(position) if self._horizon is not None else ()
        wanted = list(self._missing(chain(missing, rest)))
        self._is_exhaustive = self._horizon is not None and len(wanted) < _MAX_ANNOUNCED
        if wanted or self._announced:
            self._announced = set(wanted)
            self._client.announce(self._reader, [self._files.need(shard) for shard in wanted])

    def _covers(self, missing: list[int]) -> bool:
        """Whether the last list holds all that is missing, and more than half of it is still to come."""
        if any(shard not in self._announced for shard in missing):
            return False
        if self._is_exhaustive or self._horizon is None:
            return True
        return 2 * sum(map(self._files.is_present, self._announced)) < len(self._announced)

    def _missing(self, shards: Iterable[int]) -> Iterator[int]:
        seen: set[int] = set()
        for shard in shards:
            if shard not in seen and not self._files.is_present(shard):
                seen.add(shard)
                yield shard
                if len(seen) == _MAX_ANNOUNCED:
                    return
