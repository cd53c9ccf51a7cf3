"""Where the files of a stream are, and the cache of one for which the user named none."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass, field, replace

from streaming.cache.inventory import origin_of, read_origin
from streaming.errors import OptionError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import CredentialProvider, StreamConfig
from streaming.storage.url import Location


@dataclass(frozen=True, slots=True)
class StreamLocation:
    """Where a stream's files are, all settings resolved.

    `source`: a folder with the data itself, which is only read; None if the data must be fetched.
    `remote`: what is fetched from (the source again, for what must be decompressed). `cache`: the folder, absolute,
    that mirrors it. `root`: the cache's root, above the split, and whether it is our choice, not the user's.
    """

    title: str
    source: str | None
    remote: Location
    root: str
    is_private: bool
    cache: str
    download_retry: int
    download_timeout: float
    validate_hash: str | bool | None
    keep_zip: bool
    options: str = field(default="{}", repr=False)  # for the store, as JSON; may hold secrets
    credentials: CredentialProvider | None = None


def own_folder(location: StreamLocation) -> StreamLocation:
    """The location with a cache folder that holds nothing of another remote.

    A folder that is a copy of another remote says so; ours is then one below it, so that equal names do not meet.
    """
    if location.source is not None:
        return location
    origin = origin_of(str(location.remote), "")
    cache = location.cache
    while (known := read_origin(cache)) is not None and known.digest != origin.digest:
        cache = os.path.join(cache, ".remotes", origin.digest)
    return replace(location, cache=cache)


def config_of(location: StreamLocation, *, has_index: bool = True) -> StreamConfig:
    """What the fetcher must know of it."""
    return StreamConfig(
        remote=location.remote,
        local=location.cache,
        download_retry=location.download_retry,
        download_timeout=location.download_timeout,
        keep_zip=location.keep_zip,
        root=location.root,
        options=location.options,
        has_index=has_index,
    )


def read_uncached(location: StreamLocation, name: str, client: FetchClient, stream: int) -> bytes:
    """A whole object, where the cache has no room for it or cannot be written."""
    return client.read_object(
        location.remote,
        name,
        attempts=location.download_retry,
        timeout_s=location.download_timeout,
        options=location.options,
        stream=stream,
    )


def private_root(remote: str) -> str:
    """The cache root of a remote that was given no `local`: in the temporary directory, for this user alone."""
    digest = hashlib.blake2s(os.fsencode(remote), digest_size=16).hexdigest()
    return os.path.join(_private_base(), digest)


def make_private(location: StreamLocation) -> None:
    """Make what a private cache lies in; nothing for a cache that the user named.

    Raises OptionError if it cannot be made, or somebody else has put something there.
    """
    if not location.is_private:
        return
    base = os.path.dirname(location.root)
    problem = "is not a folder of this user alone"
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        found = os.lstat(base)
        is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    except OSError as error:
        is_private, problem = False, f"cannot be made ({error.strerror})"
    if not is_private:
        raise OptionError(f"{location.title} must be cached and names no `local`, and {base} {problem}: give local=")


def _private_base() -> str:
    try:  # which tries by writing a file whether it may: not to be asked for by who needs no private cache
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # no temporary directory can be written: only who needs one will be told
        folder = "/tmp"  # noqa: S108
    return os.path.join(folder, f"streaming-cache-{os.geteuid()}")
