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
from streaming.fetch.credentials import CredentialProvider
from streaming.fetch.protocol import StreamConfig


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream's files are, all settings resolved.

    `source`: a folder with the data itself, which is only read; None if the data must be fetched.
    `remote`: what is fetched from (the source again, for what must be decompressed). `cache`: the folder, absolute,
    that mirrors it. `root`: the cache's root, above the split, and whether it is our choice, not the user's.
    """

    title: str
    source: str | None
    remote: str
    root: str
    is_private: bool
    cache: str
    download_retry: int
    download_timeout: float
    validate_hash: str | bool | None
    keep_zip: bool
    options: str = field(default="{}", repr=False)  # for the store, as JSON; may hold secrets
    credentials: CredentialProvider | None = None


def own_folder(place: Place) -> Place:
    """The place with a cache folder that holds nothing of another remote.

    A folder that is a copy of another remote says so; ours is then one below it, so that equal names do not meet.
    """
    if place.source is not None:
        return place
    origin = origin_of(place.remote, "")
    cache = place.cache
    while (known := read_origin(cache)) is not None and known.digest != origin.digest:
        cache = os.path.join(cache, ".remotes", origin.digest)
    return replace(place, cache=cache)


def config_of(place: Place, *, has_index: bool = True) -> StreamConfig:
    """What the fetcher must know of it."""
    return StreamConfig(
        remote=place.remote,
        local=place.cache,
        download_retry=place.download_retry,
        download_timeout=place.download_timeout,
        keep_zip=place.keep_zip,
        root=place.root,
        options=place.options,
        has_index=has_index,
    )


def read_uncached(place: Place, name: str, client: FetchClient) -> bytes:
    """A whole object, where the cache has no room for it or cannot be written."""
    return client.read_object(
        place.remote,
        name,
        attempts=place.download_retry,
        timeout_s=place.download_timeout,
        options=place.options,
    )


def private_root(remote: str) -> str:
    """The cache root of a remote that was given no `local`: in the temporary directory, for this user alone."""
    digest = hashlib.blake2s(os.fsencode(remote), digest_size=16).hexdigest()
    return os.path.join(_private_base(), digest)


def make_private(place: Place) -> None:
    """Make what a private cache lies in; nothing for a cache that the user named.

    Raises OptionError if it cannot be made, or somebody else has put something there.
    """
    if not place.is_private:
        return
    base = os.path.dirname(place.root)
    problem = "is not a folder of this user alone"
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        found = os.lstat(base)
        is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    except OSError as error:
        is_private, problem = False, f"cannot be made ({error.strerror})"
    if not is_private:
        raise OptionError(f"{place.title} must be cached and names no `local`, and {base} {problem}: give local=")


def _private_base() -> str:
    try:  # which tries by writing a file whether it may: not to be asked for by who needs no private cache
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # no temporary directory can be written: only who needs one will be told
        folder = "/tmp"  # noqa: S108
    return os.path.join(folder, f"streaming-cache-{os.geteuid()}")
