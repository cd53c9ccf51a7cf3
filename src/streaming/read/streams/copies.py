"""Whether what the cache holds of a remote is what the remote has now, and where its files are to lie if it is not.

One look at each index at the start of a run: a request for its size and version, and for its bytes where these do not
tell. A remote that was written anew gets a folder of its own in the cache, so that old and new shards are never mixed;
the old files stay until their room is needed. A store that does not answer changes nothing: a run goes on without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from streaming.cache.origin import IndexVersion, digest_of, folder_for, read_origin, renew, subfolder_of
from streaming.errors import IndexFormatError, StorageError, StoreCannotError, StreamingError
from streaming.fetch.client import FetchClient
from streaming.formats.index import parse_index
from streaming.formats.index_outline import outline_of
from streaming.formats.names import INDEX_NAME
from streaming.read.streams.location import StreamLocation, read_uncached
from streaming.regular_file import read_regular
from streaming.storage.store import ObjectFacts

_log: Final = logging.getLogger("streaming")
_said_once: Final[set[str]] = set()
"""What this process has said of copies."""


def current_copies(locations: Sequence[StreamLocation], client: FetchClient) -> list[StreamLocation]:
    """The same streams, each in a cache folder that holds nothing of an older version of its remote.

    Never raises for a store: what cannot be looked at is used as it lies in the cache.
    """
    noted = {number: _noted_at(each) for number, each in enumerate(locations) if each.source is None}
    numbers = [number for number in noted if noted[number] is not None or _has_index(locations[number])]
    try:
        found = client.head([(number, INDEX_NAME) for number in numbers]) if numbers else []
    except StreamingError as error:  # no fetcher can be had
        found = [error for _ in numbers]
    current = list(locations)
    for number, facts in zip(numbers, found, strict=True):
        location = locations[number]
        try:
            if isinstance(facts, StreamingError) and not isinstance(facts, StoreCannotError):
                raise facts
            known = None if isinstance(facts, StreamingError) else facts
            current[number] = _current(location, noted[number], known, client, number)
        except StreamingError as error:
            _say(f"{location.title}: {location.cache} is used as it is; the store may have a newer version ({error})")
    return current


def _noted_at(location: StreamLocation) -> IndexVersion | None:
    """Of which index the cache folder of a stream says that it holds the files; None if it says none."""
    origin = read_origin(location.cache)
    return None if origin is None else origin.index


def _has_index(location: StreamLocation) -> bool:
    return os.path.exists(os.path.join(location.cache, INDEX_NAME))


def _held_digest(location: StreamLocation, noted: IndexVersion | None) -> str | None:
    """The digest of the index in the cache; of the one that is noted if none lies there; None if there is neither."""
    with contextlib.suppress(OSError, IndexFormatError):
        content = read_regular(os.path.join(location.cache, INDEX_NAME))
        outline_of(content, where=INDEX_NAME)
        return digest_of(content)
    return None if noted is None else noted.digest


def _current(
    location: StreamLocation, noted: IndexVersion | None, facts: ObjectFacts | None, client: FetchClient, number: int
) -> StreamLocation:
    """The stream with the folder for its files. `facts`: of the store's index. Raises what the store answers."""
    if facts is not None and noted is not None and noted.is_of(facts.n_bytes, facts.version, facts.modified_s):
        return location
    held = _held_digest(location, noted)
    if held is None:  # what lies there is no index, and is fetched again when it is read
        return location
    content = read_uncached(location, INDEX_NAME, client, number)
    outline = outline_of(content, where=f"{location.remote.shown}/{INDEX_NAME}")
    facts = facts if facts is not None and facts.n_bytes == len(content) else ObjectFacts(INDEX_NAME, -1, None)
    seen = IndexVersion(digest_of(content), len(content), facts.version, facts.modified_s, outline.is_hashed)
    ours = replace(location.origin, index=seen)
    if held == seen.digest and (noted is None or _has_old_shards(content, noted, seen, client, number)):
        with contextlib.suppress(StorageError):  # a cache that cannot be written is compared again next time
            renew(location.cache, ours)
        return location
    folder = folder_for(ours, subfolder_of(location.cache, ours))
    _say(
        f"{location.title} was written anew: {location.cache} holds another version of it, which is not used any more. "
        f"The new one is cached in {folder}"
    )
    return replace(location, cache=folder)


def _has_old_shards(content: bytes, noted: IndexVersion, seen: IndexVersion, client: FetchClient, number: int) -> bool:
    """Whether the shards of an index that was written anew, with the same bytes, are those of before.

    A writer writes all of them, and before the index. So a few of them tell. Raises what the store answers.
    """
    if seen.identity == noted.identity or seen.modified_s is None or noted.modified_s is None:
        return True
    index = parse_index(content, where=INDEX_NAME)
    shards = sorted({0, index.n_shards // 2, index.n_shards - 1}) if index.n_shards else []
    names = [index.zip_name(shard) or index.raw_name(shard) for shard in shards]
    for facts in client.head([(number, name) for name in names]):
        if isinstance(facts, StreamingError):
            raise facts
        if facts.modified_s is None or facts.modified_s > noted.modified_s:
            return False
    return True


def _say(what: str) -> None:
    if what not in _said_once:
        _said_once.add(what)
        _log.warning("%s", what)
