"""Files to which records refer: single objects beside a dataset, such as videos, fetched when they are asked for."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import BinaryIO, Final

from streaming.errors import CacheTakenError, CacheWriteError, FetchError, NoRoomError, ObjectMissingError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import FileRequest
from streaming.read.streams.location import StreamLocation, config_of, make_private, own_folder, read_uncached
from streaming.read.streams.recovery import discard_lost_side_files
from streaming.regular_file import NotRegularError, open_regular

_MAX_GONE: Final = 100
"""Times that a file may be evicted for others before it is opened."""
_MAX_TAKEN: Final = 3
"""Times that the folder may become another remote's before anything has come."""


class SideFiles:
    """The files below a remote, each by its name. Made by `StreamingDataset.side_files`; pickles as configuration.

    They are cached in a folder of their own, by the fetcher of the dataset and within its `cache_limit`. The file that
    was used longest ago is evicted first, and only files that came from this remote ever are. Thread-safe.
    """

    def __init__(self, location: StreamLocation, meeting_place: str | None, cache_limit: int | None) -> None:
        """`meeting_place`: the cache root whose fetcher is used."""
        self._settings = _Settings(location, meeting_place, cache_limit)
        self._open()

    def _open(self) -> None:
        settings = self._settings
        self._location = own_folder(settings.location)
        if self._location.source is None:
            discard_lost_side_files(self._location.title, self._location.cache)
        providers = {} if self._location.credentials is None else {0: self._location.credentials}
        self._client = FetchClient(
            settings.meeting_place,
            [config_of(self._location, has_index=False)],
            cache_limit=settings.cache_limit,
            providers=providers,
        )

    def __getstate__(self) -> _Settings:
        return self._settings

    def __setstate__(self, settings: _Settings) -> None:
        self._settings = settings
        self._open()

    def read(self, name: str) -> bytes:
        """Wait for a file and return its bytes; `name` is its path below the remote.

        Raises ObjectMissingError if there is no such file, and what else a store answers.
        """
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. An open file can be read to its end, even if it is evicted meanwhile."""
        request = FileRequest(stream=0, name=name, n_bytes=-1)
        if self._location.source is not None:
            return self._open_source(self._location.source, name)
        make_private(self._location)
        for attempt in range(1, _MAX_TAKEN + 1):
            try:
                return self._open_cached(request)
            except CacheTakenError:  # by a job that has just started
                if attempt == _MAX_TAKEN:
                    raise
                self.close()
                self._open()
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Give back the connection; the next call makes another."""
        self._client.close()

    def _open_source(self, source: str, name: str) -> BinaryIO:
        try:
            return open(open_regular(os.path.join(source, name)), "rb")
        except (FileNotFoundError, NotRegularError):
            raise ObjectMissingError(f"{self._location.title}: there is no {name} in {source}") from None

    def _open_cached(self, request: FileRequest) -> BinaryIO:
        for _ in range(_MAX_GONE):
            try:
                path = self._client.wait(request)
            except (NoRoomError, CacheWriteError):  # then without the cache
                return io.BytesIO(read_uncached(self._location, request.name, self._client, 0))
            try:
                return open(open_regular(path), "rb")
            except FileNotFoundError:
                continue  # it was evicted for others meanwhile
        raise FetchError(
            f"{self._location.title}: {request.name} came {_MAX_GONE} times and was gone before it was opened; "
            "raise cache_limit"
        )


@dataclass(frozen=True, slots=True)
class _Settings:
    location: StreamLocation
    meeting_place: str | None
    cache_limit: int | None
