"""From a shard's number to its open file, wherever that lies, and to memory. A file that is not on disk is fetched.

A map holds no descriptor: a reader maps hundreds of shards at a time, where the usual limit is 1,024 descriptors.
Python's `mmap` keeps a duplicate of the descriptor until 3.13, so before 3.13 the C library is asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming.cache.files import is_checked, mark_checked, table_name
from streaming.errors import ShardDamagedError, StorageError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import FileRequest
from streaming.formats.hashing import hasher
from streaming.formats.index import ShardIndex
from streaming.formats.layout import Layout, layout_of
from streaming.mounts import is_on_network
from streaming.read.streams.indexes import StreamFiles, missing_from_source, wanted_hash
from streaming.read.telemetry.counters import Count, SharedCounters
from streaming.regular_file import NotRegularError, open_regular

_PATIENCE_S: Final = 120.0
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file, whose descriptor the receiver must close."""

    fd: int
    n_bytes: int
    may_map: bool
    """Whether nobody will cut the file short, so that it may be mapped."""
    is_ours: bool
    """Whether the file was fetched, so that it may be deleted and fetched again."""


class ShardFiles:
    """The files of the shards of all streams. It remembers only which it has seen on disk; safe between threads."""

    def __init__(
        self,
        streams: Sequence[StreamFiles],
        client: FetchClient,
        counters: SharedCounters,
        *,
        may_vanish: bool = False,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`may_vanish`: files are evicted from the cache, so one that was seen there is looked for again.

        `patience_s`: how long a reader waits for a shard that vanishes each time it has come, or finds no room.
        """
        self._streams = tuple(streams)
        self._client = client
        self.counters = counters
        self.patience_s = patience_s
        self._first_shard = np.cumsum([0, *(stream.index.n_shards for stream in streams)])
        self._present = bytearray(int(self._first_shard[-1]))  # 1: seen on disk; a file that vanishes is fetched again
        self._seen = 0 if may_vanish else 1
        self._may_map = [not is_on_network(stream.location.cache) for stream in streams]
        self.by_parts: NDArray[np.bool_] = np.concatenate([_by_parts(stream) for stream in streams])
        """bool (shard,): whether single samples can be read from the store, without the shard."""
        self.any_by_parts = bool(self.by_parts.any())
        self.is_in_place = all(
            stream.location.source is not None and not stream.index.is_compressed for stream in self._streams
        )
        """Whether every stream is read where it lies, uncompressed, so that nothing is ever fetched."""

    # --- what is known of a shard

    def locate(self, shard: int) -> tuple[StreamFiles, int]:
        """The stream of a shard, and the shard's number within it."""
        number = int(np.searchsorted(self._first_shard, shard, "right")) - 1
        return self._streams[number], shard - int(self._first_shard[number])

    def name(self, shard: int) -> str:
        """The name of the shard in messages."""
        stream, local = self.locate(shard)
        return f"{stream.location.title}, shard {local} ({stream.index.raw_name(local)})"

    def index(self, shard: int) -> tuple[ShardIndex, int]:
        """The index that describes a shard, and the shard's number in it."""
        stream, local = self.locate(shard)
        return stream.index, local

    def layout(self, shard: int) -> tuple[Layout, int]:
        """The layout of a shard, and its number of samples."""
        index, local = self.index(shard)
        return layout_of(index.schema(local).format), int(index.samples[local])

    def mean_record_bytes(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """The average size of a sample of each of these shards: int64 (any,) -> int64 (any,)."""
        sizes = np.zeros(len(shards), np.int64)
        numbers = np.searchsorted(self._first_shard, shards, "right") - 1
        for number in np.unique(numbers).tolist():
            index, mine = self._streams[number].index, numbers == number
            local = shards[mine] - self._first_shard[number]
            sizes[mine] = index.raw_bytes[local] // np.maximum(1, index.samples[local])
        return sizes

    def request(self, shard: int) -> FileRequest:
        """The request by which the fetcher is asked for a shard."""
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

    def folder(self, shard: int) -> str:
        """The folder in which the shard is cached."""
        return self.locate(shard)[0].location.cache

    def table_path(self, shard: int) -> str:
        """The path at which the offset table of an absent shard is kept, once it has been fetched."""
        stream, local = self.locate(shard)
        return os.path.join(stream.location.cache, table_name(stream.index.raw_name(local)))

    # --- its file

    def is_present(self, shard: int) -> bool:
        """Whether the raw file is on disk. For a shard that was seen there it costs no system call."""
        if self._present[shard]:
            return True
        stream, local = self.locate(shard)
        name = stream.index.raw_name(local)
        folders = (stream.location.source, stream.location.cache)
        found = any(folder is not None and os.path.exists(os.path.join(folder, name)) for folder in folders)
        if found:
            self._present[shard] = self._seen
        return found

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
        if found is not None and not self._is_as_hashed(shard, found):
            self._discard_at_hand(shard, found)
            found = None
        self.counters.add({Count.AWAITED if found is None else Count.AT_HAND: 1})
        gives_up_s = time.monotonic() + self.patience_s
        while found is None:
            # A file that has come may vanish before it is opened: others make room there, or delete by hand.
            if time.monotonic() > gives_up_s:
                raise ShardDamagedError(
                    f"{self.name(shard)} was fetched again and again for {self.patience_s:.0f} s and vanished each "
                    f"time from {location.cache} before it could be opened: something else deletes files there"
                )
            self._client.wait(self.request(shard))
            found = self._try_open(location.cache, name, shard, is_ours=True)
        self._present[shard] = self._seen
        return found

    def _is_as_hashed(self, shard: int, file: OpenFile) -> bool:
        """Whether a file from the cache has the hash that the user named; True if they named none.

        Whatever was checked when it was placed is not read again.
        """
        stream, local = self.locate(shard)
        choice = stream.location.validate_hash
        if not isinstance(choice, str):
            return True
        checked = self.request(shard).checked
        if checked is None or is_checked(file.fd, checked):
            return True
        expected = stream.index.raw_hashes(local).get(choice)
        if expected is None:  # only the compressed form has one
            return False
        digest, offset = hasher(choice), 0
        while chunk := os.pread(file.fd, _READ_BYTES, offset):
            digest.update(chunk)
            offset += len(chunk)
        if digest.hexdigest() != expected:
            return False
        mark_checked(file.fd, checked)
        return True

    def _discard_at_hand(self, shard: int, file: OpenFile) -> None:
        """Delete a cached file whose hash is not the index's. Raises ShardDamagedError if that cannot be done."""
        self.discard(shard, os.fstat(file.fd))
        os.close(file.fd)
        stream, local = self.locate(shard)
        path = os.path.join(stream.location.cache, stream.index.raw_name(local))
        if os.path.exists(path):
            raise ShardDamagedError(
                f"{self.name(shard)}: {path} has not the {stream.location.validate_hash} of the index, and this user "
                "cannot delete it, so that it would be fetched again; delete it, or choose another `local`"
            )

    def discard(self, shard: int, status: os.stat_result) -> None:
        """Delete a fetched file that turned out to be damaged, so that it is fetched again; never a source.

        `status` is that of the open file: one that has taken its place stays.
        """
        stream, local = self.locate(shard)
        path = os.path.join(stream.location.cache, stream.index.raw_name(local))
        self._present[shard] = 0
        # If the file has gone, or this user cannot delete it, opening it again shows the damage that is left.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), status):  # else another process has replaced it meanwhile
                os.unlink(path)

    def _try_open(self, folder: str, name: str, shard: int, *, is_ours: bool) -> OpenFile | None:
        """The open file; None if it is missing, or was fetched and has the wrong size."""
        path = os.path.join(folder, name)
        try:
            fd = open_regular(path)
        except OSError as error:
            self._present[shard] = 0
            if isinstance(error, FileNotFoundError) or (is_ours and isinstance(error, NotRegularError)):
                return None
            raise StorageError(f"{self.name(shard)}: {path} cannot be read: {error.strerror or error}") from error
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
    """Whether samples can be read without the rest of their shard: bool (shard,), true of fetched, uncompressed shards.

    A hash covers the whole file. A user who names a hash wants no byte that it has not covered, so nothing is by parts.
    """
    location, index = stream.location, stream.index
    if location.source is not None or isinstance(location.validate_hash, str):
        return np.zeros(index.n_shards, np.bool_)
    in_data = np.array([layout_of(schema.format).offsets_in == "data" for schema in index.schemas], np.bool_)
    fetched: NDArray[np.bool_] = (index.zip_bytes < 0) & in_data[index.schema_of]
    return fetched


# --- files as memory

_FAILED: Final = ctypes.c_void_p(-1).value


def map_file(fd: int, n_bytes: int) -> memoryview:
    """Map the first `n_bytes` of an open file, read-only. `fd` may be closed at once.

    The memory is given back when the view and all slices of it are gone. Only for files that nobody shortens: touching
    a page behind the end of a file kills the process. Raises OSError.
    """
    if n_bytes == 0:
        return memoryview(b"")
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(fd, n_bytes, access=mmap.ACCESS_READ, trackfd=False))
    return _map_by_libc(fd, n_bytes)


def _map_by_libc(fd: int, n_bytes: int) -> memoryview:
    libc = _libc()
    address = libc.mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    block = _block_type(n_bytes.bit_length()).from_address(address)
    # Every view keeps `block` alive, so the pages go exactly when the last view has gone. At exit the kernel does it.
    weakref.finalize(block, libc.munmap, address, n_bytes).atexit = False
    return memoryview(block).cast("B")[:n_bytes].toreadonly()


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


@cache
def _block_type(n_bits: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """A type longer than any size of `n_bits` bits; one type for every size would cost more to make than the map.

    Nothing beyond the map is ever touched: its view is cut to the map's size at once.
    """
    return ctypes.c_ubyte * (1 << n_bits)
