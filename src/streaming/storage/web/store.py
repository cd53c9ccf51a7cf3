"""Any web server as a store: files are read by GET and written by PUT where the server takes it; there is no list.

Servers differ, so only what an answer says is relied on. A server that ignores ranges sends the whole object, whose
beginning is skipped. An object of unstated length, or one that comes packed, is read to its end to learn its size. A
version that the server does not check is compared here.
"""

from __future__ import annotations

import base64
import contextlib
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from streaming.errors import ObjectMissingError, OptionError, StoreCannotError, TransferDamagedError
from streaming.storage.common.diagnosis import Access
from streaming.storage.common.packed_objects import encodings_of, part_of_content, spooled, unpacked
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.uploads import CountedFile, open_upload
from streaming.storage.url import Bucket
from streaming.storage.web.answers import (
    Body,
    HttpAnswer,
    body_of,
    condition_for,
    facts_of,
    skip_bytes,
    url_of,
    version_of,
)
from streaming.storage.web.client import HttpClient, HttpSettings

_NO_HEAD: Final = (405, 501)


def open_web(location: Bucket, settings: StoreSettings) -> WebStore:
    """Open `http://` and `https://`."""
    options = options_for(location, settings.options)
    user, at, host = location.name.rpartition("@")
    if at and {"user", "password"} & set(options):
        raise OptionError(f"{location.shown}: the user stands in the URL and in storage_options; leave one out")
    if at:
        name, _, password = user.partition(":")
        options |= {"user": urllib.parse.unquote(name), "password": urllib.parse.unquote(password)}
    headers, identity = _credentials(options, is_in_url=bool(at))
    base = f"{location.scheme}://{host}/{location.prefix}".rstrip("/")
    access = Access(location.shown, f"{location.scheme}://{host}", identity, bool(headers or options.get("query")))
    return WebStore(HttpClient(HttpSettings.of(settings, options), access, headers), base, options.get("query", ""))


class WebStore:
    """The files below a URL."""

    def __init__(self, client: HttpClient, base: str, query: str = "") -> None:
        """Add `query` to the URL of each request."""
        self._client, self._base, self._query = client, base, query

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        try:
            answer, body = self._request(name, {"Range": f"bytes={offset}-"} if offset else {}, version)
        except TransferDamagedError as error:
            if not (
                offset and error.is_beyond_end and self._comes_packed(name)
            ):  # the range was one of the packed bytes
                raise
            answer, body = self._request(name, {}, version)
        if encodings := _encodings(name, answer):
            if answer.status == 206:
                answer.close()
                answer, body = self._request(name, {}, version)
            return self._unpacked(name, answer, encodings, offset)
        if body.begin not in (0, offset):
            raise self._damaged(name, f"bytes from {offset} on were asked for, bytes from {body.begin} on came", answer)
        if body.n_bytes is not None and body.end in (None, body.n_bytes):
            facts = facts_of(name, body.n_bytes, answer.headers)
            return Content(facts, offset, skip_bytes(iter(answer), offset - body.begin))
        if body.begin:
            raise self._damaged(name, f"bytes up to {body.end} came, and no word of how many there are", answer)
        return self._spooled(name, answer, iter(answer), offset)

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        try:
            answer, body = self._request(name, {"Range": f"bytes={begin}-{end - 1}"}, version)
        except TransferDamagedError as error:
            if not (error.is_beyond_end and self._comes_packed(name)):
                raise
            return part_of_content(self.get(name, offset=begin, version=version), begin, end, shown=self._shown(name))
        if encodings := _encodings(name, answer):
            if answer.status == 206:
                answer.close()
                whole = self.get(name, offset=begin, version=version)
            else:
                whole = self._unpacked(name, answer, encodings, begin)
            return part_of_content(whole, begin, end, shown=self._shown(name))
        if body.begin not in (0, begin) or (body.end is not None and body.end < end):
            came = f"bytes {body.begin} to {body.end} of {body.n_bytes} came"
            raise self._damaged(name, f"bytes {begin} to {end} were asked for, {came}", answer)
        data = _first_bytes(skip_bytes(iter(answer), begin - body.begin), end - begin)
        answer.close()
        if len(data) != end - begin:
            raise self._damaged(name, f"bytes {begin} to {end} were asked for, {len(data)} came", answer)
        n_bytes = body.n_bytes if body.n_bytes is not None else self.head(name).n_bytes
        return Part(facts_of(name, n_bytes, answer.headers), data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store. Sends one PUT; whether the object appears only once it is whole is up to the server."""
        with open_upload(path, f"{self._base}/{name}") as file:
            headers = {"Content-Length": str(os.fstat(file.fileno()).st_size)}
            body = CountedFile(file, moved)
            self._client.request("PUT", self._url(name), name=name, headers=headers, body=body).read()

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Raise StoreCannotError: web servers have no list."""
        raise StoreCannotError(
            f"{self._base}/{prefix}: a web server does not list what it has; name the files, or list them where "
            "they are stored"
        )

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        answer = self._client.request("HEAD", self._url(name), name=name, takes=_NO_HEAD)
        if answer.status not in _NO_HEAD:
            body = body_of(answer.status, answer.headers)
            if body is not None and body.n_bytes is not None and not _encodings(name, answer):
                return facts_of(name, body.n_bytes, answer.headers)
        return self.get(name).facts  # the object itself tells what its server does not say

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError):
            self._client.request("DELETE", self._url(name), name=name).read()

    def _request(self, name: str, headers: dict[str, str], version: str | None) -> tuple[HttpAnswer, Body]:
        """Request an object; return an answer that does not contradict the version, and the bytes it brings."""
        answer = self._client.request("GET", self._url(name), name=name, headers={**headers, **condition_for(version)})
        came = version_of(answer.headers)
        if version is not None and came not in (None, version):
            raise self._damaged(name, "the object changed while it was read", answer)
        body = body_of(answer.status, answer.headers)
        if body is None or (answer.status == 206 and not headers):
            raise self._damaged(name, f"the server answered {answer.status} with no headers that fit", answer)
        return answer, body

    def _unpacked(self, name: str, answer: HttpAnswer, encodings: tuple[str, ...], offset: int) -> Content:
        chunks = unpacked(answer, encodings, shown=self._shown(name))
        return self._spooled(name, answer, chunks, offset)

    def _spooled(self, name: str, answer: HttpAnswer, chunks: Iterator[bytes], offset: int) -> Content:
        headers = answer.headers
        with contextlib.closing(answer):
            return spooled(chunks, offset, lambda n_bytes: facts_of(name, n_bytes, headers), shown=self._shown(name))

    def _comes_packed(self, name: str) -> bool:
        """Whether the server says that the object comes packed; it refuses ranges beyond the packed size."""
        answer = self._client.request("HEAD", self._url(name), name=name, takes=_NO_HEAD)
        return bool(_encodings(name, answer))

    def _shown(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _url(self, name: str) -> str:
        return url_of(self._base, name, self._query)

    def _damaged(self, name: str, what: str, answer: HttpAnswer) -> TransferDamagedError:
        answer.close()
        return TransferDamagedError(f"{self._shown(name)}: {what}; check who writes to it, and what stands in between")


def _credentials(options: Mapping[str, Any], *, is_in_url: bool) -> tuple[dict[str, str], str]:
    """Return the headers that hold the credentials, and the words that complete "asked with …"."""
    headers = dict(options.get("headers", {}))
    said = [f"the {what} of storage_options" for what in ("headers", "query") if what in options]
    if "token" in options:
        headers["Authorization"] = f"Bearer {options['token']}"
        said.append("the token of storage_options")
    if "user" in options or "password" in options:
        if "token" in options:
            raise OptionError("storage_options: give a 'token', or a 'user' with its 'password', not both")
        words = f"{options.get('user', '')}:{options.get('password', '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
        said.append("the user of the URL" if is_in_url else "the user of storage_options")
    return headers, " and ".join(said) or "no credentials"


def _encodings(name: str, answer: HttpAnswer) -> tuple[str, ...]:
    return encodings_of(name, answer.headers.get("Content-Encoding"))


def _first_bytes(chunks: Iterator[bytes], n_bytes: int) -> bytes:
    """Return the first `n_bytes`, or all if there are fewer."""
    data = bytearray()
    for chunk in chunks:
        data += chunk[: n_bytes - len(data)]
        if len(data) == n_bytes:
            break
    return bytes(data)
