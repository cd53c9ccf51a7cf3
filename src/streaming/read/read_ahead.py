"""Telling the fetcher which shards a reader will need, in order of first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from streaming.fetch.client import FetchClient
from streaming.read.shard_files import ShardFiles

MAX_ANNOUNCED: Final = 1024
_MAX_LOOKED_AT: Final = 4 * MAX_ANNOUNCED  # shards in use and shards on disk are passed over


class ReadAhead:
    """One reader's announcements. Says nothing, and starts no fetcher, while all that is looked at is on disk.

    `reader` names this reader in its job. `horizon(position, limit)` gives the shards that this machine needs at or
    after a position and on into the next epoch, in order of first use; it is asked again every `renew_after` positions,
    and whenever something is missing that was not announced. None: only what is planned exactly is announced.
    """

    def __init__(
        self,
        client: FetchClient,
        files: ShardFiles,
        reader: str,
        horizon: Callable[[int, int], Sequence[int]] | None,
        *,
        renew_after: int,
    ) -> None:
        self._client = client
        self._files = files
        self._reader = reader
        self._horizon = horizon
        self._renew_after = renew_after
        self._renew_at: int | None = -1  # a position; None: the last look went to the end of the next epoch
        self._announced: set[int] = set()

    def advance(self, planned: Sequence[int], position: int) -> None:
        """The next shards to be read are `planned`, in this order; the rest of the epoch begins at `position`."""
        missing = [shard for shard in planned if not self._files.is_present(shard)]
        is_due = self._horizon is not None and self._renew_at is not None and position >= self._renew_at
        if not is_due and self._announced.issuperset(missing):
            return
        wanted = dict.fromkeys(missing)
        if self._horizon is not None:
            ahead = self._horizon(position, _MAX_LOOKED_AT)
            self._renew_at = None if len(ahead) < _MAX_LOOKED_AT else position + self._renew_after
            wanted |= dict.fromkeys(shard for shard in ahead if not self._files.is_present(shard))
        if wanted or self._announced:
            needs = list(wanted)[:MAX_ANNOUNCED]
            self._announced = set(needs)
            if len(needs) < len(wanted) and self._renew_at is None:
                self._renew_at = position + self._renew_after
            self._client.announce(self._reader, [self._files.need(shard) for shard in needs])
