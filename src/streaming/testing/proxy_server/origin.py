"""Answers of a read-only S3 store."""

from __future__ import annotations

import email.utils
import functools
import urllib.parse
from collections import defaultdict
from collections.abc import Mapping
from io import FileIO
from typing import Final

from streaming.testing.faults import LoggedRequest
from streaming.testing.proxy_server.answer import ProxyAnswer, ProxyRequest, error_answer
from streaming.testing.proxy_server.listing import list_objects
from streaming.testing.proxy_server.objects import FileSlice, OriginBucket, OriginObject


class Origin:
    """The objects of all buckets. One serves all clients. `contents` holds the bytes that were added."""

    checks_signatures: Final = False

    def __init__(self, folders: Mapping[str, str], contents: FileIO) -> None:
        self._buckets = defaultdict(OriginBucket, {name: OriginBucket(folder) for name, folder in folders.items()})
        self._contents = contents

    def add(self, bucket: str, objects: Mapping[str, str | tuple[int, int]]) -> None:
        """Add objects, or replace them: key → path of a file, or begin and length in `contents`."""
        for key, at in objects.items():
            self._buckets[bucket].added[key] = at if isinstance(at, str) else FileSlice(self._contents, *at)

    def remove(self, bucket: str, key: str) -> None:
        """Remove an object that was added."""
        self._buckets[bucket].added.pop(key, None)

    async def answer(self, request: ProxyRequest) -> ProxyAnswer:
        """The answer to a request. The request's body is left unread."""
        asked = request.entry
        name, _, key = asked.path.removeprefix("/").partition("/")
        if asked.method not in ("GET", "HEAD"):
            return error_answer(asked, 405, message="this origin is read-only")
        if name not in self._buckets:
            return error_answer(asked, 404, code="NoSuchBucket")
        if not key:
            return _listing(asked, name, self._buckets[name])
        found = self._buckets[name].find(key)
        return error_answer(asked, 404) if found is None else _object(asked, found)

    def close(self) -> None:
        """Do nothing: no state is kept for a client."""


def _object(asked: LoggedRequest, found: OriginObject) -> ProxyAnswer:
    if asked.headers.get("if-match") not in (None, "*", found.etag):
        return error_answer(asked, 412)
    headers = [
        (b"ETag", found.etag.encode()),
        (b"Last-Modified", _http_date(int(found.modified_s))),
        (b"Accept-Ranges", b"bytes"),
        (b"Content-Type", b"application/octet-stream"),
    ]
    if asked.headers.get("if-none-match") in ("*", found.etag):
        return ProxyAnswer(304, headers, None)
    status, content = 200, found.content
    if asked.span is not None:
        begin, end = _clipped(asked.span, len(content))
        if begin >= end:
            return error_answer(asked, 416)
        headers.append((b"Content-Range", b"bytes %d-%d/%d" % (begin, end - 1, len(content))))
        status, content = 206, content[begin:end]
    return ProxyAnswer.of(asked, status, headers, content)


def _listing(asked: LoggedRequest, name: str, bucket: OriginBucket) -> ProxyAnswer:
    query = dict(urllib.parse.parse_qsl(asked.query, keep_blank_values=True))
    if asked.method == "GET" and query.get("list-type") != "2":
        return error_answer(asked, 501, message="of a bucket, only ListObjectsV2 can be asked here")
    text = list_objects(name, bucket.list(query.get("prefix", "")), query)
    return ProxyAnswer.of(asked, 200, [(b"Content-Type", b"application/xml")], text.encode())


def _clipped(span: tuple[int, int | None], n_bytes: int) -> tuple[int, int]:
    """The span within an object of this length: first byte, and one beyond the last."""
    begin, end = span
    if begin < 0:
        return max(0, n_bytes + begin), n_bytes
    return begin, n_bytes if end is None else min(end, n_bytes)


@functools.lru_cache(64)
def _http_date(moment_s: int) -> bytes:
    return email.utils.formatdate(moment_s, usegmt=True).encode()
