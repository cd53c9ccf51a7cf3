"""Where the files of a stream are, and a private cache for a stream without `local`."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass, field, replace

from streaming.cache.origin import CopyOrigin, folder_for, origin_of
from streaming.errors import OptionError
from streaming.fetch.client import FetchClient
from streaming.fetch.wire import CredentialProvider, StreamConfig
from streaming.storage.url import Location


@dataclass(frozen=True, slots=True)
class StreamLocation:
    """Where a stream's files are, and how they are fetched, with all settings resolved."""

    title: str
    """The stream in error messages, without secrets."""
    source: str | None
    """A folder with the data itself, which is only read; None if the data must be fetched."""
    remote: Location
    """Where files are fetched from; the source again, for shards that must be decompressed."""
    root: str
    """The root of the cache, above the split."""
    is_private: bool
    """Whether we chose the root, not the user."""
    cache: str
    """The folder that mirrors the remote, absolute."""
    download_retry: int
    download_timeout: float
    validate_hash: str | bool | None
    keep_zip: bool
    options: str = field(default="{}", repr=False)
    """Options of the store, as JSON; may hold secrets."""
    credentials: CredentialProvider | None = None

    @property
    def origin(self) -> CopyOrigin:
        """The remote, as a cache folder names it; whichever index it has."""
        return origin_of(str(self.remote), self.remote.shown)


def own_folder(location: StreamLocation) -> StreamLocation:
    """Choose a cache folder that holds no other remote's files.

    A folder that is a copy of another remote says so in a marker. The stream then gets a folder below it, so that
    files of the same name do not meet.
    """
    if location.source is not None:
        return location
    return replace(location, cache=folder_for(location.origin, location.cache))


def config_of(location: StreamLocation, *, has_index: bool = True) -> StreamConfig:
    """Collect what the fetcher must know of a stream."""
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
    """Read a whole object past the cache, which has no room for it or cannot be written."""
    return client.read_object(
        location.remote,
        name,
        attempts=location.download_retry,
        timeout_s=location.download_timeout,
        options=location.options,
        stream=stream,
    )


def private_root(remote: str) -> str:
    """The cache root for a remote without `local`: in the temporary directory, for this user alone."""
    digest = hashlib.blake2s(os.fsencode(remote), digest_size=16).hexdigest()
    return os.path.join(_private_base(), digest)


def make_private(location: StreamLocation) -> None:
    """Make the folder above a private cache; do nothing for a cache that the user named.

    Raises OptionError if it cannot be made, or is not a folder of this user alone.
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
    try:  # writes a file to see whether it may, so it is called only where a private cache is needed
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # no temporary directory can be written; `make_private` raises if one is needed
        folder = "/tmp"  # noqa: S108
    return os.path.join(folder, f"streaming-cache-{os.geteuid()}")
