"""`dbfs:/Volumes/…`, files of Unity Catalog, by Databricks' Files API; `dbfs:/…`, the older DBFS, by its own.

Both are used over plain HTTP: the calls of Databricks' SDK retry for five minutes by themselves and read no ranges.
Times have whole seconds in the Files API, so two versions of the same size within one second cannot be distinguished.
"""

from __future__ import annotations

import email.utils
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from streaming.errors import ObjectMissingError, OptionError, StorageError, TransferDamagedError
from streaming.storage.common.diagnosis import Access
from streaming.storage.databricks.dbfs import DbfsStore
from streaming.storage.databricks.login import databricks_login
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part, Store
from streaming.storage.url import Bucket
from streaming.storage.web.answers import url_of
from streaming.storage.web.client import HttpClient, HttpSettings
from streaming.storage.web.store import WebStore

_MAX_BYTES: Final = 5 << 30  # of one upload


def open_databricks(location: Bucket, settings: StoreSettings) -> Store:
    """Open `dbfs:/`."""
    options = options_for(location, settings.options)
    http = HttpSettings.of(settings, options)
    login = databricks_login(options, settings.environment, http)
    client = HttpClient(http, Access(location.shown, login.host, login.shown_identity, True), login.headers)
    path = f"/{location.prefix}".rstrip("/")
    if f"{path}/".startswith("/Volumes/"):
        return VolumeStore(client, login.host, path)
    return DbfsStore(client, login.host, path)


class VolumeStore:
    """The files below a folder of a volume."""

    def __init__(self, client: HttpClient, host: str, path: str) -> None:
        self._client, self._path = client, path
        self._folders = f"{host}/api/2.0/fs/directories"
        self._files = WebStore(client, url_of(f"{host}/api/2.0/fs/files", path.lstrip("/")))

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        return self._files.get(name, offset=offset, version=version)

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        return self._files.get_range(name, begin, end, version=version)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store. Compares the size of the stored file."""
        try:
            n_bytes = os.stat(path).st_size
        except OSError as error:
            raise StorageError(f"{path} cannot be read for the upload to {self._path}: {error}") from error
        if n_bytes > _MAX_BYTES:
            raise OptionError(f"{path} has {n_bytes} bytes; a volume takes {_MAX_BYTES}: make the shards smaller")
        try:
            self._files.put(name, path, moved=moved)
        except ObjectMissingError:  # its folder is missing
            folder = f"{self._path}/{name}".rpartition("/")[0]
            self._client.request("PUT", self._folder_url(folder), name=name).read()
            self._files.put(name, path, moved=moved)
        found = self.head(name)
        if found.n_bytes != n_bytes:
            raise TransferDamagedError(f"{self._path}/{name}: {n_bytes} bytes were sent, {found.n_bytes} are there")

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        folders = [f"{self._path}/{prefix}".rstrip("/")]
        while folders:
            for entry in self._entries(folders.pop()):
                path = entry["path"]
                if entry.get("is_directory"):
                    folders.append(path.rstrip("/"))
                else:
                    name, moment_s = path[len(self._path) + 1 :], int(entry.get("last_modified", 0)) // 1000
                    version = email.utils.formatdate(moment_s, usegmt=True)  # the same as HEAD gives
                    yield ObjectFacts(name, int(entry.get("file_size", 0)), version, float(moment_s) or None)

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return self._files.head(name)

    def delete(self, name: str) -> None:
        """See Store."""
        self._files.delete(name)

    def _entries(self, folder: str) -> Iterator[dict[str, Any]]:
        page = ""
        while True:
            url = self._folder_url(folder, f"page_token={page}" if page else "")
            answer = self._client.request("GET", url, takes=(404,))
            if answer.status == 404:
                answer.read()
                return
            listed = json.loads(answer.read())
            yield from listed.get("contents", ())
            page = listed.get("next_page_token", "")
            if not page:
                return

    def _folder_url(self, folder: str, query: str = "") -> str:
        return url_of(self._folders, folder.lstrip("/"), query)
