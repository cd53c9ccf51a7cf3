"""From a shard's number to its open file, wherever it lies, fetching it if need be."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.cache.files import table_name
from streaming.errors import ShardDamagedError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import FileRequest
from streaming.formats.index import ShardIndex
from streaming.formats.layout import layout_of
from streaming.read.shards.mapping import is_on_network
from streaming.read.streams.indexes import StreamFiles, missing_from_source, wanted_hash
from streaming.read.telemetry.counters import Count, SharedCounters

_PATIENCE_S: Final = 120.0  # with a shard that vanishes again and again


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A descriptor that the receiver must close, and whether the file may be mapped (nobody will cut it).

    `is_ours`: it was fetched, so that it may be dropped and fetched again.
    """

    fd: int
    n_bytes: int
    may_map: bool
    is_ours: bool


class ShardFiles:
    """Where the shards of all streams are. Stateless but for what it knows to be on disk; safe between threads.

    `may_vanish`: somebody makes room in the cache, so that what was seen there is looked for again.
    """

    def __init__(
        self, streams: Sequence[StreamFiles], client: FetchClient, counters: SharedCounters, *, may_vanish: bool = False
    ) -> None:
        self._streams = tuple(streams)
        self._client = client
        self.counters = counters
        self._first_shard = np.cumsum([0, *(stream.index.n_shards for stream in streams)])
        self._present = bytearray(int(self._first_shard[-1]))  # 1: seen on disk; a file that vanishes is fetched again
        self._seen = 0 if may_vanish else 1
        self._may_map = [not is_on_network(stream.location.cache) for stream in streams]
        self.by_parts: NDArray[np.bool_] = np.concatenate([_by_parts(stream) for stream in streams])
        """bool (shard,): whether single samples can be read from the store, without the shard."""
        self.any_by_parts = bool(self.by_parts.any())

    @property
    def all_sources(self) -> bool:
        """Whether nothing ever needs fetching: every stream is read where it lies, uncompressed."""
        return all(
            stream.location.source is not None and not bool((stream.index.zip_bytes >= 0).any())
            for stream in self._streams
        )

    def locate(self, shard: int) -> tuple[StreamFiles, int]:
        """The stream of a shard, and the shard's number within it."""
        number = int(np.searchsorted(self._first_shard, shard, "right")) - 1
        return self._streams[number], shard - int(self._first_shard[number])

    def name(self, shard: int) -> str:
        """What a message calls the shard."""
        stream, local = self.locate(shard)
        return f"{stream.location.title}, shard {local} ({stream.index.raw_name(local)})"

    def index(self, shard: int) -> tuple[ShardIndex, int]:
        """The index that describes a shard, and its number there."""
        stream, local = self.locate(shard)
        return stream.index, local

    def mean_record_bytes(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """How large a sample of each shard is on average, int64 (any,) -> int64 (any,)."""
        sizes = np.zeros(len(shards), np.int64)
        numbers = np.searchsorted(self._first_shard, shards, "right") - 1
        for number in np.unique(numbers).tolist():
            index, mine = self._streams[number].index, numbers == number
            local = shards[mine] - self._first_shard[number]
            sizes[mine] = index.raw_bytes[local] // np.maximum(1, index.samples[local])
        return sizes

    def is_present(self, shard: int) -> bool:
        """Whether the raw file is on disk. Asked again for a shard that is, costs no system call."""
        if self._present[shard]:
            return True
        stream, local = self.locate(shard)
        name = stream.index.raw_name(local)
        folders = (stream.location.source, stream.location.cache)
        found = any(folder is not None and os.path.exists(os.path.join(folder, name)) for folder in folders)
        if found:
            self._present[shard] = self._seen
        return found

    def need(self, shard: int) -> FileRequest:
        """What the fetcher is told of a shard."""
        stream, local = self.locate(shard)
        index, zip_name = stream.index, stream.index.zip_name(local)
        hash_name = wanted_hash(stream.location, index, local)
        hashes = index.raw_hashes(local) if zip_name is None else index.zip_hashes(local)
        return FileRequest(
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
        location, name = stream.location, stream.index.raw_name(local)
        if location.source is not None:
            found = self._try_open(location.source, name, shard, is_ours=False)
            if found is not None:
                self.counters.add({Count.AT_HAND: 1})
                return found
            if stream.index.zip_name(local) is None:
                raise missing_from_source(location, name)
        found = self._try_open(location.cache, name, shard, is_ours=True)
        self.counters.add({Count.AWAITED if found is None else Count.AT_HAND: 1})
        gives_up_s = time.monotonic() + _PATIENCE_S
        while found is None:
            # What came may be gone again at once: others make room there, or delete by hand.
            if time.monotonic() > gives_up_s:
                raise ShardDamagedError(
                    f"{self.name(shard)} was fetched again and again for {_PATIENCE_S:.0f} s and vanished each time "
                    f"from {location.cache} before it could be opened: something else deletes files there"
                )
            self._client.wait(self.need(shard))
            found = self._try_open(location.cache, name, shard, is_ours=True)
        self._present[shard] = self._seen
        return found

    def discard(self, shard: int, file: OpenFile) -> None:
        """Delete a fetched file that turned out to be damaged, so that it is fetched again; no other, and no source."""
        stream, local = self.locate(shard)
        path = os.path.join(stream.location.cache, stream.index.raw_name(local))
        self._present[shard] = 0
        if not file.is_ours:
            return
        with contextlib.suppress(OSError):  # gone already, or not ours to write: then the damage is met again, and said
            if os.path.samestat(os.stat(path), os.fstat(file.fd)):  # else somebody has replaced it meanwhile
                os.unlink(path)

    def folder(self, shard: int) -> str:
        """Where the shard is cached."""
        return self.locate(shard)[0].location.cache

    def table_path(self, shard: int) -> str:
        """Where the offset table of a shard lies that is not on disk itself, if it was ever fetched."""
        stream, local = self.locate(shard)
        return os.path.join(stream.location.cache, table_name(stream.index.raw_name(local)))

    def _try_open(self, folder: str, name: str, shard: int, *, is_ours: bool) -> OpenFile | None:
        """The open file; None if it is not there, or is a fetched file of the wrong size."""
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._present[shard] = 0
            return None
        index, local = self.index(shard)
        expected, found = int(index.raw_bytes[local]), os.fstat(fd).st_size
        if found == expected:
            number = self.locate(shard)[0].number
            return OpenFile(fd, found, is_ours and self._may_map[number], is_ours)
        os.close(fd)
        self._present[shard] = 0
        if is_ours:
            return None
        raise ShardDamagedError(
            f"{self.name(shard)}: {path} has {found:,} bytes where the index says {expected:,}; "
            "the file was cut short or replaced"
        )


def _by_parts(stream: StreamFiles) -> NDArray[np.bool_]:
    """Whether the samples of each shard can be read without the rest: of fetched, uncompressed ones; bool (shard,).

    A hash is one of the whole file. Who asks for one by its name wants no byte that it has not covered.
    """
    location, index = stream.location, stream.index
    if location.source is not None or isinstance(location.validate_hash, str):
        return np.zeros(index.n_shards, np.bool_)
    in_data = np.array([layout_of(schema.format).offsets_in == "data" for schema in index.schemas], np.bool_)
    fetched: NDArray[np.bool_] = (index.zip_bytes < 0) & in_data[index.schema_of]
    return fetched
