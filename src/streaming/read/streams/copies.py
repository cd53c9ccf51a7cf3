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
from dataclasses import dataclass, replace
from typing import Final

from streaming.cache.origin import CopyOrigin, IndexVersion, digest_of, origin_of, read_origin, renew, subfolder_of
from streaming.errors import IndexFormatError, StorageError, StoreCannotError, StreamingError
from streaming.fetch.client import FetchClient
from streaming.formats.index import parse_index
from streaming.formats.index_outline import check_outline, is_hashed
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
    copies = {number: copy for number, location in enumerate(locations) if (copy := _copy_at(location)) is not None}
    numbers = list(copies)
    try:
        found = client.head([(number, INDEX_NAME) for number in numbers]) if numbers else []
    except StreamingError as error:  # no fetcher can be had
        found = [error for _ in numbers]
    current = list(locations)
    for number, facts in zip(numbers, found, strict=True):
        location, copy = locations[number], copies[number]
        try:
            if isinstance(facts, StreamingError) and not isinstance(facts, StoreCannotError):
                raise facts
            known = None if isinstance(facts, StreamingError) else facts
            current[number] = _current(location, copy, known, client, number)
        except StreamingError as error:
            _say(f"{location.title}: {location.cache} is used as it is; the store may have a newer version ({error})")
    return current


@dataclass(frozen=True, slots=True)
class _Copy:
    """What a cache folder holds of an index."""

    content: bytes | None  # None: nothing that is an index
    noted: IndexVersion | None


def _copy_at(location: StreamLocation) -> _Copy | None:
    """What the cache folder of a stream holds; None if that is nothing, or if the stream is read in place."""
    if location.source is not None:
        return None
    content = None
    with contextlib.suppress(OSError, IndexFormatError):
        whole = read_regular(os.path.join(location.cache, INDEX_NAME))
        check_outline(whole, where=INDEX_NAME)
        content = whole
    origin = read_origin(location.cache)
    noted = None if origin is None else origin.index
    return None if content is None and noted is None else _Copy(content, noted)


def _current(
    location: StreamLocation, copy: _Copy, facts: ObjectFacts | None, client: FetchClient, number: int
) -> StreamLocation:
    """The stream with the folder for its files. `facts`: of the store's index. Raises what the store answers."""
    noted = copy.noted
    if facts is not None and noted is not None and noted.is_of(facts.n_bytes, facts.version, facts.modified_s):
        return location
    content = read_uncached(location, INDEX_NAME, client, number)
    check_outline(content, where=f"{location.remote.shown}/{INDEX_NAME}")
    facts = facts if facts is not None and facts.n_bytes == len(content) else ObjectFacts(INDEX_NAME, -1, None)
    seen = IndexVersion(digest_of(content), len(content), facts.version, facts.modified_s, is_hashed(content))
    ours = replace(origin_of(str(location.remote), location.remote.shown), index=seen)
    held = digest_of(copy.content) if copy.content is not None else noted.digest if noted is not None else None
    if held == seen.digest and (noted is None or _has_old_shards(content, noted, seen, client, number)):
        with contextlib.suppress(StorageError):  # a cache that cannot be written is compared again next time
            renew(location.cache, ours)
        return location
    folder = _folder_for(ours, location.cache)
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


def _folder_for(origin: CopyOrigin, folder: str) -> str:
    """The first folder below `folder` for the files of `origin` that holds nothing of another one."""
    folder = subfolder_of(folder, origin)
    while (known := read_origin(folder)) is not None and not known.admits(origin):
        folder = subfolder_of(folder, origin)
    return folder


def _say(what: str) -> None:
    if what not in _said_once:
        _said_once.add(what)
        _log.warning("%s", what)
