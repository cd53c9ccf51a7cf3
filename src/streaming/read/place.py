"""Where the files of a stream are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream's files are, all settings resolved.

    `source`: a folder with the data itself, which is only read; None if the data must be fetched.
    `remote`: what is fetched from (the source again, for what must be decompressed). `cache`: the folder, absolute,
    that mirrors it. `root`: the cache's root, above the split.
    """

    title: str
    source: str | None
    remote: str
    root: str
    cache: str
    download_retry: int
    download_timeout: float
    validate_hash: str | bool | None
    keep_zip: bool
