"""A store as a user would add it: a folder that needs a key."""

from __future__ import annotations

from streaming.errors import ObjectForbiddenError
from streaming.storage.local import FolderStore
from streaming.storage.settings import StoreSettings
from streaming.storage.url import Bucket


def open_shelf(location: Bucket, settings: StoreSettings) -> FolderStore:
    """An Opener for `shelf://anywhere/folder`."""
    key = settings.options.get("key")
    if key != "the right one":
        raise ObjectForbiddenError(f"{location.shown}: {key} does not fit")
    return FolderStore(f"/{location.prefix}")
