"""DBFS, Databricks' older file system, by its HTTP interface: each answer has 1 MiB of a file, base64 in JSON."""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, Final

from streaming.errors import ObjectMissingError, StorageError, TransferDamagedError
from streaming.placement import is_temporary, temporary_beside
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.uploads import open_upload, replace_in_steps
from streaming.storage.web.client import HttpClient

_BLOCK_BYTES: Final = 1 << 20  # the most that one request may read or write


class DbfsStore:
    """The files below a folder of DBFS."""

    def __init__(self, client: HttpClient, host: str, path: str) -> None:
        self._client, self._path, self._api = client, path, f"{host}/api/2.0/dbfs"

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        facts = self._facts(name, version)
        return Content(facts, offset, self._blocks(name, offset, facts.n_bytes))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        facts = self._facts(name, version)
        data = b"".join(self._blocks(name, begin, min(end, facts.n_bytes)))
        if len(data) != end - begin:
            raise TransferDamagedError(
                f"{self._shown(name)} has {facts.n_bytes} bytes; bytes {begin} to {end} were asked for: was it cut?"
            )
        return Part(facts, data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store. DBFS does not move onto a file that exists: one that is replaced is hidden for a moment."""
        target = self._full_path(name)
        temporary = temporary_beside(target)
        with open_upload(path, self._shown(name)) as file:
            self._post("mkdirs", name, path=target.rpartition("/")[0] or "/")
            try:
                self._write(name, temporary, file, moved)
                self._replace(name, temporary, target)
            except BaseException:
                with contextlib.suppress(StorageError):
                    self._post("delete", name, path=temporary)
                raise

    def _replace(self, name: str, path: str, target: str) -> None:
        def move(path: str, target: str) -> None:
            self._post("move", name, source_path=path, destination_path=target)

        try:
            move(path, target)
        except StorageError as error:
            if "RESOURCE_ALREADY_EXISTS" not in str(error):
                raise
            kept = replace_in_steps(move, path, target)
            with contextlib.suppress(StorageError):  # the new file is in place, and the old one is hidden
                self._post("delete", name, path=kept)

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store. Hidden temporaries of writers are not objects."""
        folders = [self._full_path(prefix)]
        while folders:
            folder = folders.pop()
            try:
                entries = self._get("list", prefix, path=folder or "/").get("files", ())
            except ObjectMissingError:
                continue
            for entry in entries:
                path = entry["path"]
                if entry.get("is_dir"):
                    folders.append(path)
                elif path != folder and not is_temporary(path):
                    yield _facts_of(path[len(self._path) + 1 :], entry)

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return self._facts(name, None)

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError):
            self._post("delete", name, path=self._full_path(name))

    def _facts(self, name: str, version: str | None) -> ObjectFacts:
        status = self._get("get-status", name, path=self._full_path(name))
        if status.get("is_dir"):
            raise ObjectMissingError(f"{self._shown(name)} is a folder; check the path")
        facts = _facts_of(name, status)
        if version is not None and version != facts.version:
            raise TransferDamagedError(f"{self._shown(name)} changed while it was read; check who writes to it")
        return facts

    def _blocks(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        while begin < end:
            length = min(_BLOCK_BYTES, end - begin)
            answer = self._get("read", name, path=self._full_path(name), offset=begin, length=length)
            data = base64.b64decode(answer.get("data", ""))
            if not data:
                raise TransferDamagedError(f"{self._shown(name)} was cut to {begin} bytes while it was read")
            begin += len(data)
            yield data

    def _write(self, name: str, path: str, file: Any, moved: Callable[[int], None] | None) -> None:
        handle, n_bytes = self._post("create", name, path=path, overwrite=False)["handle"], 0
        while block := file.read(_BLOCK_BYTES):
            self._post("add-block", name, handle=handle, data=base64.b64encode(block).decode())
            n_bytes += len(block)
            if moved is not None:
                moved(n_bytes)
        self._post("close", name, handle=handle)

    def _get(self, call: str, name: str, **fields: Any) -> Any:
        query = urllib.parse.urlencode(fields, quote_via=urllib.parse.quote)
        return json.loads(self._client.request("GET", f"{self._api}/{call}?{query}", name=name).read())

    def _post(self, call: str, name: str, **fields: Any) -> Any:
        headers, body = {"Content-Type": "application/json"}, json.dumps(fields).encode()
        answer = self._client.request("POST", f"{self._api}/{call}", name=name, headers=headers, body=body)
        return json.loads(answer.read() or b"{}")

    def _full_path(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _shown(self, name: str) -> str:
        return f"dbfs:{self._full_path(name)}"


def _facts_of(name: str, status: dict[str, Any]) -> ObjectFacts:
    n_bytes, modified_ms = int(status["file_size"]), status.get("modification_time", 0)
    return ObjectFacts(name, n_bytes, f"{modified_ms}-{n_bytes}", modified_ms / 1000 or None)
