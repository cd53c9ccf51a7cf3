"""From a shard's number to its open file, wherever it lies, fetching it if need be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streaming.errors import ShardDamagedError
from streaming.fetch.client import FetchClient
from streaming.fetch.protocol import FileNeed
from streaming.formats.index import ShardIndex
from streaming.read.catalog_loader import StreamFiles, missing_from_source, wanted_hash
from streaming.read.mapping import is_on_network


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A descriptor that the receiver must close, and whether the file may be mapped (nobody will cut it)."""

    fd: int
    n_bytes: int
    may_map: bool


class ShardFiles:
    """Where the shards of all streams are. Stateless but for what it knows to be on disk; safe between threads."""

    def __init__(self, streams: Sequence[StreamFiles], client: FetchClient) -> None:
        self._streams = tuple(streams)
        self._client = client
        self._first_shard = np.cumsum([0, *(stream.index.n_shards for stream in streams)])
        self._present = bytearray(int(self._first_shard[-1]))  # 1: seen on disk; a file that vanishes is fetched again
        self._may_map = [not is_on_network(stream.place.cache) for stream in streams]

    @property
    def all_sources(self) -> bool:
        """Whether nothing ever needs fetching: every stream is read where it lies, uncompressed."""
        return all(
            stream.place.source is not None and not bool((stream.index.zip_bytes >= 0).any())
            for stream in self._streams
        )

    def locate(self, shard: int) -> tuple[StreamFiles, int]:
        """The stream of a shard, and the shard's number within it."""
        number = int(np.searchsorted(self._first_shard, shard, "right")) - 1
        return self._streams[number], shard - int(self._first_shard[number])

    def name(self, shard: int) -> str:
        """What a message calls the shard."""
        stream, local = self.locate(shard)
        return f"{stream.place.title}, shard {local} ({stream.index.raw_name(local)})"

    def index(self, shard: int) -> tuple[ShardIndex, int]:
        """The index that describes a shard, and its number there."""
        stream, local = self.locate(shard)
        return stream.index, local

    def is_present(self, shard: int) -> bool:
        """Whether the raw file is on disk. Asked again for a shard that is, costs no system call."""
        if self._present[shard]:
            return True
        stream, local = self.locate(shard)
        name = stream.index.raw_name(local)
        folders = (stream.place.source, stream.place.cache)
        found = any(folder is not None and os.path.exists(os.path.join(folder, name)) for folder in folders)
        if found:
            self._present[shard] = 1
        return found

    def need(self, shard: int) -> FileNeed:
        """What the fetcher is told of a shard."""
        stream, local = self.locate(shard)
        index, zip_name = stream.index, stream.index.zip_name(local)
        hash_name = wanted_hash(stream.place, index, local)
        hashes = index.raw_hashes(local) if zip_name is None else index.zip_hashes(local)
        return FileNeed(
            stream=stream.number,
            name=index.raw_name(local),
            n_bytes=int(index.raw_bytes[local]),
            zip_name=zip_name,
            zip_bytes=int(index.zip_bytes[local]),
            compression=index.compression(local),
            hash_name=hash_name,
            hash_hex=None if hash_name is None else hashes[hash_name],
        )

    def open(self, shard: int) -> OpenFile:
        """Open the raw file of a shard; one that is not on disk, or has the wrong size there, is fetched first.

        Raises what the fetcher answers, ObjectMissingError and ShardDamagedError, each naming stream and shard.
        """
        stream, local = self.locate(shard)
        place, name = stream.place, stream.index.raw_name(local)
        if place.source is not None:
            found = self._try_open(place.source, name, shard, may_map=False)
            if found is not None:
                return found
            if stream.index.zip_name(local) is None:
                raise missing_from_source(place, name)
        may_map = self._may_map[stream.number]
        found = self._try_open(place.cache, name, shard, may_map=may_map, is_cache=True)
        if found is None:
            path = self._client.wait(self.need(shard))
            found = self._try_open(os.path.dirname(path), os.path.basename(path), shard, may_map=may_map)
        if found is None:
            raise ShardDamagedError(
                f"{self.name(shard)} vanished from {place.cache} right after it was fetched: "
                "something else deletes files there"
            )
        self._present[shard] = 1
        return found

    def _try_open(
        self, folder: str, name: str, shard: int, *, may_map: bool, is_cache: bool = False
    ) -> OpenFile | None:
        """The open file; None if it is not there, or is a cached file of the wrong size."""
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._present[shard] = 0
            return None
        index, local = self.index(shard)
        expected, found = int(index.raw_bytes[local]), os.fstat(fd).st_size
        if found == expected:
            return OpenFile(fd, found, may_map)
        os.close(fd)
        self._present[shard] = 0
        if is_cache:
            return None
        raise ShardDamagedError(
            f"{self.name(shard)}: {path} has {found:,} bytes where the index says {expected:,}; "
            "the file was cut short or replaced"
        )
