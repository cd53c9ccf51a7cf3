"""Answers from here: files under `/bucket/key` as S3 serves them, read-only; and objects that are made up."""

from __future__ import annotations

import contextlib
import email.utils
import os
import random
import tempfile
import urllib.parse
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

from streaming.testing.proxy_server.answers import Answer, FileSlice, Piece, error_answer, in_pieces, whole_answer
from streaming.testing.proxy_server.http1 import Headers, RequestHead
from streaming.testing.proxy_server.listing import Listed, list_objects
from streaming.testing.proxy_server.sources import Request

_PERIOD: Final = 65_521  # prime, so that a byte from a wrong place nearly always differs
_N_PERIODS: Final = 256


def synthetic_bytes(key: str, begin: int, end: int) -> bytes:
    """The bytes of a made-up object: a fixed block, repeated, from a place that depends on the key."""
    at = (begin + zlib.crc32(key.encode())) % _PERIOD
    n_blocks = (at + end - begin) // _PERIOD + 1
    return (_block() * n_blocks)[at : at + end - begin]


def _block() -> bytes:
    return random.Random(0).randbytes(_PERIOD)


@dataclass(frozen=True, slots=True)
class Stored:
    """One object: a file's content, or made up where there is no file."""

    key: str
    n_bytes: int
    etag: str
    modified_s: float
    path: str | None


class Bucket:
    """Objects by key: those of a folder, and others that were added."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._files: dict[str, str] = {}
        self._synthetic: dict[str, int] = {}

    def add_files(self, files: Mapping[str, str]) -> None:
        """More objects: key → path. A file may have several keys."""
        self._files |= files

    def add_synthetic(self, sizes: Mapping[str, int]) -> None:
        """More objects that are made up: key → bytes."""
        self._synthetic |= sizes

    def find(self, key: str) -> Stored | None:
        """The object of this key."""
        if key in self._synthetic:
            n_bytes = self._synthetic[key]
            return Stored(key, n_bytes, f'"{zlib.crc32(key.encode()):08x}-{n_bytes:x}"', 0.0, None)
        path = self._files.get(key)
        if path is None:
            if self._folder is None or ".." in key.split("/") or key.startswith("/"):
                return None
            path = os.path.join(self._folder, key)
        if not os.path.isfile(path):
            return None
        facts = os.stat(path)
        etag = f'"{facts.st_mtime_ns:x}-{facts.st_ino:x}-{facts.st_size:x}"'
        return Stored(key, facts.st_size, etag, facts.st_mtime, path)

    def keys(self) -> set[str]:
        """All of them."""
        return {*self._files, *self._synthetic, *self._keys_of_folder()}

    def _keys_of_folder(self) -> Iterator[str]:
        for folder, _, names in os.walk(self._folder) if self._folder is not None else ():
            for name in names:
                yield os.path.relpath(os.path.join(folder, name), self._folder)


class Origin:
    """The objects, and the file from which made-up content is sent. Serves all clients."""

    checks_signatures = False

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._buckets = {name: Bucket(folder) for name, folder in folders.items()}
        self._pattern: BinaryIO | None = None

    def bucket(self, name: str) -> Bucket:
        """This one, made if there is none."""
        return self._buckets.setdefault(name, Bucket())

    @contextlib.asynccontextmanager
    async def answering(self, request: Request) -> AsyncIterator[Answer]:
        """See Source."""
        head = request.head
        name, _, key = head.path.removeprefix("/").partition("/")
        bucket = self._buckets.get(name)
        if head.method not in ("GET", "HEAD"):
            yield error_answer(head.method, head.path, 405, message="this origin is read-only")
        elif bucket is None:
            yield error_answer(head.method, head.path, 404, code="NoSuchBucket")
        elif key:
            with contextlib.ExitStack() as stack:
                yield self._object(head, bucket.find(key), stack)
        else:
            yield _listing(head, name, bucket)

    def close(self) -> None:
        """See Source: nothing is kept for one client."""

    def _object(self, head: RequestHead, stored: Stored | None, stack: contextlib.ExitStack) -> Answer:
        if stored is None:
            return error_answer(head.method, head.path, 404)
        if head.headers.get("If-Match") not in (None, "*", stored.etag):
            return error_answer(head.method, head.path, 412)
        lines = [
            ("ETag", stored.etag),
            ("Last-Modified", email.utils.formatdate(stored.modified_s, usegmt=True)),
            ("Accept-Ranges", "bytes"),
            ("Content-Type", "application/octet-stream"),
        ]
        if head.headers.get("If-None-Match") in ("*", stored.etag):
            return whole_answer(304, lines, b"", method=head.method)
        status, begin, end = 200, 0, stored.n_bytes
        if head.span is not None:
            begin, end = _within(head.span, stored.n_bytes)
            if begin >= end:
                return error_answer(head.method, head.path, 416)
            status = 206
            lines.append(("Content-Range", f"bytes {begin}-{end - 1}/{stored.n_bytes}"))
        body = None if head.method == "HEAD" else in_pieces(self._content(stored, begin, end, stack))
        return Answer(status, "OK" if status == 200 else "Partial Content", Headers(tuple(lines)), end - begin, body)

    def _content(self, stored: Stored, begin: int, end: int, stack: contextlib.ExitStack) -> Iterator[Piece]:
        if stored.path is not None:
            file = stack.enter_context(open(stored.path, "rb"))  # noqa: SIM115  the stack closes it
            yield FileSlice(file, begin, end - begin)
            return
        pattern, shift = self._pattern_file(), zlib.crc32(stored.key.encode())
        while begin < end:
            at = (begin + shift) % _PERIOD
            n_bytes = min(end - begin, _PERIOD * _N_PERIODS - at)
            yield FileSlice(pattern, at, n_bytes)
            begin += n_bytes

    def _pattern_file(self) -> BinaryIO:
        if self._pattern is None:
            self._pattern = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
            self._pattern.write(_block() * _N_PERIODS)
            self._pattern.flush()
        return self._pattern


def _listing(head: RequestHead, name: str, bucket: Bucket) -> Answer:
    query = {key: values[-1] for key, values in urllib.parse.parse_qs(head.query, keep_blank_values=True).items()}
    if head.method == "HEAD":
        return whole_answer(200, [], b"", method="HEAD")
    if query.get("list-type") != "2":
        return error_answer(head.method, head.path, 501, message="of a bucket, only ListObjectsV2 can be asked here")
    prefix = query.get("prefix", "")
    found = (bucket.find(key) for key in sorted(bucket.keys()) if key.startswith(prefix))
    listed = [Listed(each.key, each.n_bytes, each.etag, each.modified_s) for each in found if each is not None]
    text = list_objects(name, listed, query)
    return whole_answer(200, [("Content-Type", "application/xml")], text.encode(), method=head.method)


def _within(span: tuple[int, int | None], n_bytes: int) -> tuple[int, int]:
    """First byte, and one beyond the last, of those that there are."""
    begin, end = span
    if begin < 0:
        return max(0, n_bytes + begin), n_bytes
    return begin, n_bytes if end is None else min(end, n_bytes)
