"""Open shards: from shard and row to a decoded sample.

The warm path is one dictionary look-up, one slice of memory (or one `pread`) and the compiled decoder: no lock, no
`open`, no `stat`.
"""

from __future__ import annotations

import os
import resource
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeAlias

from streaming.errors import ClosedError, FormatError, ShardDamagedError, StorageError
from streaming.file_reads import read_at
from streaming.fork_safety import ForkSafeLock
from streaming.formats.index import Schema
from streaming.formats.layout import layout_of
from streaming.read.shards.files import OpenFile, ShardFiles, map_file

Sample: TypeAlias = dict[str, Any]
Decode: TypeAlias = Callable[[bytes | memoryview], Sample]

_MAX_MAPPED: Final = 4096
"""Shards mapped at a time: far below the kernel's limit of maps (65,530), far above what a shuffle window needs."""


FetchAgain: TypeAlias = "Callable[[FormatError], OpenShard]"
"""Opens a shard whose bytes gave this error anew, fetched again; raises the error if that cannot be done."""


class OpenShard(Protocol):
    """An open shard: its samples by row."""

    def sample(self, row: int) -> Sample:
        """The decoded sample at this row. Raises ShardDamagedError if its bytes are not what the format says."""
        ...


class _MendableShard:
    """What shards in memory and in files share: a shard with damaged bytes is fetched again, once."""

    __slots__ = ("_again", "_decode", "_name", "_offsets")

    def __init__(self, name: str, offsets: memoryview, decode: Decode, again: FetchAgain | None) -> None:
        """`again` fetches the shard again where its bytes turn out to be damaged; None: that was done."""
        self._name = name
        self._offsets = offsets
        self._decode = decode
        self._again = again

    def _mended(self, error: FormatError, row: int) -> Sample:
        """The sample whose bytes gave this error, of the shard fetched again. Raises the error if that was done."""
        name_sample(error, self._name, row)
        if self._again is None:
            raise error
        again, self._again = self._again, None
        return again(error).sample(row)


class MappedShard(_MendableShard):
    """A shard in memory. It needs no descriptor; the map goes with the last reference."""

    __slots__ = ("_view",)

    def __init__(
        self, view: memoryview, name: str, offsets: memoryview, decode: Decode, again: FetchAgain | None
    ) -> None:
        super().__init__(name, offsets, decode, again)
        self._view = view

    def sample(self, row: int) -> Sample:
        """The decoded sample at this row."""
        offsets = self._offsets
        try:
            return self._decode(self._view[offsets[row] : offsets[row + 1]])
        except FormatError as error:
            return self._mended(error, row)


class SourceShard(_MendableShard):
    """A shard that is read record by record, since others may cut its file short. Owns a descriptor."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int, name: str, offsets: memoryview, decode: Decode, again: FetchAgain | None) -> None:
        super().__init__(name, offsets, decode, again)
        self._fd = fd
        weakref.finalize(self, os.close, fd).atexit = False

    def sample(self, row: int) -> Sample:
        """The decoded sample at this row."""
        offsets = self._offsets
        start = offsets[row]
        n_bytes = offsets[row + 1] - start
        record = read_at(self._fd, n_bytes, start)
        try:
            if len(record) != n_bytes:
                raise ShardDamagedError(f"ends after {len(record)} of {n_bytes} bytes; the file was cut short")
            return self._decode(record)
        except FormatError as error:
            return self._mended(error, row)


def name_sample(error: FormatError, shard: str, row: int) -> None:
    """Put the shard and the row into the message of a decoder's error, which keeps its kind."""
    error.args = (f"{shard}, sample {row}: {error}", *error.args[1:])


class ShardPool:
    """The shards that this process has open. Safe between threads; a forked child goes on with its own copy."""

    def __init__(self, files: ShardFiles, *, allow_unsafe_types: bool) -> None:
        self._files = files
        self._allow_unsafe_types = allow_unsafe_types
        self._decoders: dict[Schema, Decode] = {}
        self._lock = ForkSafeLock()
        self._limit = _MAX_MAPPED
        self.is_closed = False
        self.open_shards: dict[int, OpenShard] = {}
        """Read without a lock: the one look-up of the hot loop."""
        _pools.add(self)

    def open(self, shard: int, *, keep: bool = True) -> OpenShard:
        """Open a shard, waiting for it if it must be fetched; `keep` leaves it open for later readers.

        A fetched file that turns out to be damaged is fetched once more. Raises ClosedError and the kinds of
        `ShardFiles.open`.
        """
        self.check_open()
        opened = self._open_checked(shard)  # outside the lock: it may wait for the network
        if not keep:
            return opened
        with self._lock:
            kept = self.open_shards.setdefault(shard, opened)
            if isinstance(kept, SourceShard):
                self._limit = _descriptors_each()
            while len(self.open_shards) > self._limit:  # oldest first: the most likely to be used up
                oldest = next(iter(self.open_shards))
                if oldest == shard:
                    break
                del self.open_shards[oldest]
        return kept

    def keep_only(self, shards: Iterable[int], *, at_once: bool = False) -> None:
        """Close all shards but these: `at_once`, else only when three quarters of those allowed are open."""
        if at_once or 4 * len(self.open_shards) > 3 * self._limit:
            kept = set(shards)
            with self._lock:
                for shard in list(self.open_shards):
                    if shard not in kept:
                        del self.open_shards[shard]

    def drop(self, shards: Iterable[int]) -> None:
        """Close these shards, if they are open."""
        with self._lock:
            for shard in shards:
                self.open_shards.pop(shard, None)

    def decoder(self, shard: int) -> Decode:
        """The function that decodes a record of this shard."""
        index, local = self._files.index(shard)
        schema = index.schema(local)
        decode = self._decoders.get(schema)
        if decode is None:
            make_decoder = layout_of(schema.format).make_decoder
            decode = self._decoders[schema] = make_decoder(schema, allow_unsafe_types=self._allow_unsafe_types)
        return decode

    def check_open(self) -> None:
        """Raise ClosedError if the pool was closed: nothing may be fetched for it any more."""
        if self.is_closed:
            raise ClosedError("the dataset is closed")

    def close(self) -> None:
        """Close all shards, for good."""
        self.is_closed = True
        with self._lock:
            self.open_shards.clear()

    def _open_checked(self, shard: int) -> OpenShard:
        file = self._files.open(shard)
        try:
            return self._opened(shard, file, self._again(shard, file))
        except ShardDamagedError:
            if not file.is_ours:
                raise
            self._files.discard(shard, os.fstat(file.fd))
        finally:
            os.close(file.fd)
        return self._open_anew(shard)

    def _open_anew(self, shard: int) -> OpenShard:
        """Open a shard that was just discarded; it is not fetched a third time."""
        file = self._files.open(shard)
        try:
            return self._opened(shard, file, None)
        finally:
            os.close(file.fd)

    def _again(self, shard: int, file: OpenFile) -> FetchAgain | None:
        """How the shard of this file is fetched again; None for a file of a source."""
        if not file.is_ours:
            return None
        status, pool = os.fstat(file.fd), weakref.ref(self)  # the pool holds the shard, and not the other way round

        def again(error: FormatError) -> OpenShard:
            owner = pool()
            if owner is None or owner.is_closed:
                raise error
            return owner._replaced(shard, status, error)

        return again

    def _replaced(self, shard: int, status: os.stat_result, error: FormatError) -> OpenShard:
        """The shard in place of one with damaged bytes. Raises the error of these if it cannot be fetched again."""
        self._files.discard(shard, status)
        try:
            opened = self._open_anew(shard)
        except StorageError as failure:
            raise error from failure
        with self._lock:
            if shard in self.open_shards:
                self.open_shards[shard] = opened
        return opened

    def _opened(self, shard: int, file: OpenFile, again: FetchAgain | None) -> OpenShard:
        layout, n_samples = self._files.layout(shard)
        name, decode = self._files.name(shard), self.decoder(shard)
        try:
            if file.may_map:
                view = map_file(file.fd, file.n_bytes)
                offsets = layout.record_offsets(view, n_samples, file.n_bytes)
                return MappedShard(view, name, offsets.data, decode, again)
            header = read_at(file.fd, layout.header_bytes(n_samples), 0)
            offsets = layout.record_offsets(header, n_samples, file.n_bytes)
            return SourceShard(os.dup(file.fd), name, offsets.data, decode, again)
        except ShardDamagedError as error:
            raise ShardDamagedError(f"{name}: {error}") from error


_pools: weakref.WeakSet[ShardPool] = weakref.WeakSet()


def _descriptors_each() -> int:
    """Descriptors that one pool may hold, so that all pools of this process leave enough for everything else."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return _MAX_MAPPED
    return min(_MAX_MAPPED, max(16, (soft - 128) // 2 // max(1, len(_pools))))
