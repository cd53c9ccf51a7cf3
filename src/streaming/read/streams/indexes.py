"""The indexes of all streams, fetched and checked, and the catalog of their shards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streaming.cache.origin import renew
from streaming.errors import (
    CacheTakenError,
    CacheWriteError,
    EmptyStreamError,
    FormatError,
    IndexFormatError,
    IndexMissingError,
    NoRoomError,
    NotYetError,
    ObjectMissingError,
    OptionError,
    ShardDamagedError,
    StorageError,
    UnsafeTypeError,
)
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import INDEXES, FileRequest
from streaming.formats.hashing import fastest, is_hash
from streaming.formats.index import INDEX_NAME, ShardIndex, parse_index
from streaming.formats.layout import layout_of
from streaming.order import Catalog
from streaming.read.streams.location import StreamLocation, make_private, own_folder, read_uncached
from streaming.regular_file import NotRegularError, read_regular

# The files of larger sources are checked only when they are read: on a network disk each check costs a round trip.
_MAX_CHECKED_SHARDS = 10_000


@dataclass(frozen=True, slots=True)
class StreamFiles:
    """A stream whose index is known. `number`: which of the dataset's (and the fetch client's) streams it is."""

    number: int
    location: StreamLocation
    index: ShardIndex


def load_streams(
    locations: Sequence[StreamLocation], client: FetchClient, *, allow_unsafe_types: bool, allow_empty: bool = False
) -> list[StreamFiles]:
    """Read and check the indexes of all streams; fetch those that are not on disk, several at once.

    Raises IndexMissingError, IndexFormatError, EmptyStreamError, UnsafeTypeError, OptionError (a hash that the index
    does not have), ObjectMissingError and ShardDamagedError (a file of a source is missing, or has the wrong size),
    CacheTakenError (a cache folder has become a copy of another remote meanwhile), and errors of the store.
    """
    for location in locations:
        if location.source is None:
            make_private(location)
    wanted = [
        FileRequest(stream=number, name=INDEX_NAME, n_bytes=-1)
        for number, location in enumerate(locations)
        if location.source is None and not os.path.exists(os.path.join(location.cache, INDEX_NAME))
    ]
    if len(wanted) > 1:
        client.announce(INDEXES, wanted)
    streams = []
    for number, location in enumerate(locations):
        index = _index_of(location, number, client)
        if own_folder(location) != location:  # whoever placed the index has set the marker before
            raise CacheTakenError(f"{location.title}: {location.cache} is a copy of another remote")
        _check(location, index, allow_unsafe_types=allow_unsafe_types, allow_empty=allow_empty)
        streams.append(StreamFiles(number, location, index))
    return streams


def catalog_of(streams: Sequence[StreamFiles]) -> Catalog:
    """Make the catalog of the shards of all streams, one stream after the other."""
    return Catalog(
        shard_sizes=np.concatenate([stream.index.samples for stream in streams]),
        shards_per_stream=np.array([stream.index.n_shards for stream in streams], dtype=np.int64),
    )


def _index_of(location: StreamLocation, number: int, client: FetchClient) -> ShardIndex:
    """The index of a stream. One in the cache that is cut or none at all is a miss: it is fetched again, once."""
    where = f"{location.title}: {INDEX_NAME}"
    try:
        return parse_index(_index_bytes(location, number, client), where=where)
    except IndexFormatError as error:
        path = os.path.join(location.cache, INDEX_NAME)
        if location.source is not None or not os.path.exists(path):
            raise
        damage = error
    try:
        try:
            os.unlink(path)
        except OSError:  # not ours to delete
            content = read_uncached(location, INDEX_NAME, client, number)
        else:
            content = _index_bytes(location, number, client)
    except StorageError as error:
        raise IndexFormatError(f"{damage}; it lies in {location.cache} and cannot be fetched again: {error}") from error
    try:
        return parse_index(content, where=where)
    except IndexFormatError:
        # Neither the file nor the note of it is to stand in the way of the index that the store has when it is mended.
        with contextlib.suppress(OSError):
            os.unlink(path)
            renew(location.cache, location.origin)
        raise


def _index_bytes(location: StreamLocation, number: int, client: FetchClient) -> bytes:
    folder = location.cache if location.source is None else location.source
    path = os.path.join(folder, INDEX_NAME)
    try:
        return _read(path)
    except NotRegularError as error:
        if location.source is not None:
            raise StorageError(f"{location.title}: {path} is not a regular file") from error
    except FileNotFoundError:
        if location.source is not None:
            raise IndexMissingError(
                f"{location.title}: No `remote` provided, but local file {path} does not exist (No such file or "
                "directory); check the path and the split, and that the writer has finished"
            ) from None
    try:
        try:
            return _read(client.wait(FileRequest(stream=number, name=INDEX_NAME, n_bytes=-1)))
        except (CacheWriteError, NoRoomError):  # the shards then come without the cache, too, and a warning says so
            return read_uncached(location, INDEX_NAME, client, number)
    except (ObjectMissingError, IndexFormatError) as error:
        raise type(error)(f"{location.title}: {error}") from error


def _read(path: str) -> bytes:
    try:
        return read_regular(path)
    except (FileNotFoundError, NotRegularError):
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error


def _check(location: StreamLocation, index: ShardIndex, *, allow_unsafe_types: bool, allow_empty: bool) -> None:
    if index.n_samples == 0 and not allow_empty:
        raise EmptyStreamError(
            f"Stream contains no samples: {location.title}; leave it out, or check how it was written"
        )
    for schema in index.schemas:
        try:  # raise now, not at the first sample
            layout_of(schema.format).make_decoder(schema, allow_unsafe_types=allow_unsafe_types)
        except UnsafeTypeError as error:
            raise UnsafeTypeError(f"{location.title} contains an unsafe type: {error}") from error
        except (FormatError, NotYetError) as error:
            raise type(error)(f"{location.title}: {error}") from error
    wanted_hash(location, index, 0)
    if location.source is None:
        return
    is_all_raw = not index.is_compressed
    if index.n_shards <= _MAX_CHECKED_SHARDS:
        # Check each one: `all` over a generator would stop at the first that is compressed.
        n_raw = sum(_check_source_file(location, location.source, index, shard) for shard in range(index.n_shards))
        is_all_raw = n_raw == index.n_shards
    if not is_all_raw:
        make_private(location)  # compressed shards are decompressed there


def _check_source_file(location: StreamLocation, source: str, index: ShardIndex, shard: int) -> bool:
    """Check a shard of a source; return whether it is there uncompressed.

    Raises ObjectMissingError if it is there in no form, and ShardDamagedError if its size is wrong.
    """
    name, n_bytes, zip_name = index.raw_name(shard), int(index.raw_bytes[shard]), index.zip_name(shard)
    found = _size_of(os.path.join(source, name))
    is_raw = found is not None
    if not is_raw and zip_name is not None:
        name, n_bytes = zip_name, int(index.zip_bytes[shard])
        found = _size_of(os.path.join(source, name))
    if found is None:
        raise missing_from_source(location, name)
    if found != n_bytes:
        raise ShardDamagedError(
            f"{location.title}: {name} has {found:,} bytes where the index says {n_bytes:,}; "
            "the file was cut short or replaced: copy it again, or write the dataset again"
        )
    return is_raw


def _size_of(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error


def missing_from_source(location: StreamLocation, name: str) -> ObjectMissingError:
    """The error for a source without a file that its index lists."""
    return ObjectMissingError(
        f"{location.title}: {name} is listed in {INDEX_NAME} but is not in {location.source}; "
        "copy it there, or give the `remote` that has it"
    )


def wanted_hash(location: StreamLocation, index: ShardIndex, shard: int) -> str | None:
    """Choose the hash that validates a shard when it has been fetched; None for none. Raises OptionError."""
    choice = location.validate_hash
    if choice is False or index.n_shards == 0:
        return None
    hashes = index.zip_hashes(shard) if index.zip_name(shard) is not None else index.raw_hashes(shard)
    if choice is None or choice is True:
        return fastest(hashes)
    if not is_hash(choice):
        raise OptionError(f"{location.title}: validate_hash={choice!r} is not the name of a hash")
    if choice not in hashes:
        raise OptionError(
            f"{location.title}: validate_hash={choice!r}, but the index has "
            + (f"only {', '.join(sorted(hashes))}" if hashes else "no hashes")
            + "; choose another, or None for what is there"
        )
    return choice
