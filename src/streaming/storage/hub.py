"""`hf://datasets/<org>/<name>[@<revision>]/<path>`: data sets of the Hugging Face hub (extra `hf`).

Reading and listing go over the hub's HTTP interface here: its own library keeps whole files and has no deadlines.
A large object is a redirect to a content network; where it led is remembered with the version, so that further ranges
of that version cost the hub no request (it allows few). Writing is in `hub_commits`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from streaming.errors import (
    ObjectMissingError,
    OptionError,
    StorageError,
    TransferDamagedError,
)
from streaming.storage.hub_commits import HubWriter
from streaming.storage.options import check_names, first_set, home, text_option
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.url import Bucket
from streaming.storage.web import REDIRECTS, Answer, Asked, Web, quoted

_ENDPOINT: Final = "https://huggingface.co"
_N_REDIRECTS: Final = 5
_N_REMEMBERED: Final = 10_000  # places of objects
_REPO: Final = re.compile(
    r"(?P<org>[^/@]+)/(?P<name>[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?"
    r"(?:/(?P<path>.*))?",
    re.DOTALL,
)
_LINK: Final = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')


def open_hub(location: Bucket, settings: StoreSettings) -> HubStore:
    """The store at `location`. Raises OptionError or MissingExtraError."""
    check_names(settings.options, ("endpoint", "token"), location.scheme)
    place = place_of(location, settings)
    return HubStore(place, Web(settings.environment, settings.timeout_s, extra="hf"), settings)


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A folder of a data set at a revision, and how it is reached."""

    endpoint: str
    repo: str  # org/name
    revision: str
    path: str
    token: str | None = field(repr=False)

    def __str__(self) -> str:
        return f"hf://datasets/{self.repo}@{self.revision}/{self.path}".rstrip("/")

    @property
    def shown_identity(self) -> str:
        """As whom we ask."""
        return (
            "the token of HF_TOKEN, the token file or the option 'token'" if self.token else "no token (set HF_TOKEN)"
        )

    def in_repo(self, name: str) -> str:
        """A name below the place, as the repository has it."""
        return "/".join(part for part in (self.path, name) if part)


def place_of(location: Bucket, settings: StoreSettings) -> HubPlace:
    """What URL, options (which win) and variables say. Raises OptionError."""
    found = _REPO.fullmatch(location.prefix)
    if location.name != "datasets" or found is None:
        raise OptionError(
            f"Unsupported remote path: {str(location)!r}; write 'hf://datasets/<org>/<name>[@<revision>]/<path>'"
        )
    endpoint = text_option(settings.options, "endpoint") or first_set(settings.environment, "HF_ENDPOINT") or _ENDPOINT
    if not endpoint.startswith(("http://", "https://")):
        raise OptionError(f"the endpoint of the hub must begin with http:// or https://, got {endpoint!r}")
    return HubPlace(
        endpoint.rstrip("/"),
        f"{found['org']}/{found['name']}",
        urllib.parse.unquote(found["revision"] or "main"),  # a slash in it is written %2F
        (found["path"] or "").strip("/"),
        text_option(settings.options, "token") or _token(settings.environment),
    )


def _token(environment: Mapping[str, str]) -> str | None:
    """That of the environment, else that of `hf auth login`."""
    token = first_set(environment, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    if token is not None:
        return token.strip()
    cache = first_set(environment, "XDG_CACHE_HOME") or os.path.join(home(environment), ".cache")
    folder = first_set(environment, "HF_HOME") or os.path.join(cache, "huggingface")
    path = first_set(environment, "HF_TOKEN_PATH") or os.path.join(folder, "token")
    with contextlib.suppress(OSError), open(os.path.expanduser(path), encoding="utf-8") as file:
        return file.read().strip() or None
    return None


class HubStore:
    """The files of a data set below a folder, at one revision."""

    def __init__(self, place: HubPlace, web: Web, settings: StoreSettings) -> None:
        self._place, self._web = place, web
        self._links = _Links()
        self._writer = HubWriter(
            place.endpoint, place.repo, place.revision, place.token, settings.environment, settings.timeout_s
        )

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        asked = self._asked(name)
        answer, facts = self._requested(asked, name, f"bytes={offset}-" if offset else None, version)
        chunks: Iterator[bytes] = self._web.chunks(asked, answer)
        if offset:
            chunks = _from(asked, answer, chunks, offset)
        return Content(facts, offset, chunks)

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        asked = self._asked(name)
        if begin >= end:
            return Part(self.head(name), b"")
        answer, facts = self._requested(asked, name, f"bytes={begin}-{end - 1}", version)
        data = self._web.read(asked, answer)
        came = answer.content_range()
        if came is None:  # small files may come whole
            data, came = data[begin:end], (begin, min(end, len(data)), len(data))
        if came[0] != begin or len(data) != end - begin:
            raise asked.error(
                TransferDamagedError,
                f"bytes {begin} to {end} were asked for, {came[0]} to {came[1]} of {facts.n_bytes} came",
                "was it cut?",
            )
        return Part(facts, data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store. Puts that happen at the same time become one commit."""
        asked = self._asked(name)
        n_bytes = self._writer.put(asked, self._place.in_repo(name), path, moved)
        found = self.head(name)
        if found.n_bytes != n_bytes:
            raise asked.error(StorageError, f"{n_bytes} bytes were sent, {found.n_bytes} are there", "send it again")

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        asked = self._asked(prefix)
        place = self._place
        url = f"{place.endpoint}/api/datasets/{place.repo}/tree/{urllib.parse.quote(place.revision, safe='')}"
        folder = place.in_repo(prefix)
        url = f"{url}/{quoted(folder)}?recursive=true" if folder else f"{url}?recursive=true"
        n_before = len(place.path) + 1 if place.path else 0
        while url:
            answer = self._web.ask(asked, "GET", url, headers=self._headers(url), takes=frozenset({404}))
            text = self._web.read(asked, answer)
            if answer.status == 404:
                self._check_only_entry_missing(asked, answer, text)
                return
            for entry in json.loads(text):
                if entry["type"] == "file":
                    version = (entry.get("lfs") or entry)["oid"]
                    yield ObjectFacts(entry["path"][n_before:], entry["size"], version)
            following = _LINK.search(answer.headers.get("Link", ""))
            url = urllib.parse.urljoin(url, following[1]) if following else ""

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        asked = self._asked(name)
        answer, facts, _ = self._followed(asked, name, "HEAD", None)
        answer.body.release_conn()
        return facts

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError):
            self.head(name)
            self._writer.delete(self._asked(name), self._place.in_repo(name))

    def _requested(
        self, asked: Asked, name: str, byte_range: str | None, version: str | None
    ) -> tuple[Answer, ObjectFacts]:
        """The answer to a GET of (a part of) an object, of that version."""
        known = self._links.of(name, version) if version is not None else None
        if known is not None:
            url, facts = known
            with contextlib.suppress(StorageError):  # links expire; whatever it is, the hub knows better
                return self._web.ask(asked, "GET", url, headers=_range(byte_range)), facts
            self._links.forget(name)
        answer, facts, link = self._followed(asked, name, "GET", byte_range, version)
        if link is not None:
            self._links.remember(name, link, facts)
        return answer, facts

    def _followed(
        self, asked: Asked, name: str, method: str, byte_range: str | None, version: str | None = None
    ) -> tuple[Answer, ObjectFacts, str | None]:
        """Answer, facts, and where outside of the hub it came from. A HEAD stops where the facts are known."""
        place, facts = self._place, None
        revision = urllib.parse.quote(place.revision, safe="")
        url = f"{place.endpoint}/datasets/{place.repo}/resolve/{revision}/{quoted(place.in_repo(name))}"
        for _ in range(_N_REDIRECTS):
            headers = self._headers(url) | _range(byte_range)
            answer = self._web.ask(asked, method, url, headers=headers, takes=REDIRECTS)
            facts = facts or _facts_of_head(answer, name)
            if facts is not None and version not in (None, facts.version):
                answer.body.close()
                raise asked.error(TransferDamagedError, "it changed while it was read", "check who writes to it")
            if answer.status < 300 or (method == "HEAD" and facts is not None):
                if facts is None:
                    raise asked.error(StorageError, "the hub does not say how large it is", "check the endpoint")
                return answer, facts, None if self._is_ours(url) else url
            answer.body.close()
            url = urllib.parse.urljoin(url, answer.headers.get("Location", ""))
        raise asked.error(StorageError, f"the hub sent us elsewhere {_N_REDIRECTS} times", "check the endpoint")

    def _headers(self, url: str) -> dict[str, str]:
        """Our token, for the hub alone."""
        if self._place.token and self._is_ours(url):
            return {"Authorization": f"Bearer {self._place.token}"}
        return {}

    def _is_ours(self, url: str) -> bool:
        ours, theirs = urllib.parse.urlsplit(self._place.endpoint), urllib.parse.urlsplit(url)
        return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)

    def _check_only_entry_missing(self, asked: Asked, answer: Answer, text: bytes) -> None:
        """A folder that does not exist holds nothing; a data set or revision that does not is an error."""
        if answer.headers.get("X-Error-Code") != "EntryNotFound":
            raise asked.error(
                ObjectMissingError,
                f"there is no such data set or revision ({text[:200].decode(errors='replace')})",
                "check the path",
            )

    def _asked(self, name: str) -> Asked:
        shown = f"{self._place}/{name}" if name else str(self._place)
        return Asked(shown, self._place.endpoint, self._place.shown_identity)


class _Links:
    """Owns what is known of where objects lie outside of the hub."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: OrderedDict[str, tuple[str, ObjectFacts]] = OrderedDict()

    def of(self, name: str, version: str) -> tuple[str, ObjectFacts] | None:
        """Where this version of the object lies, if that is known."""
        with self._lock:
            known = self._by_name.get(name)
        return known if known is not None and known[1].version == version else None

    def remember(self, name: str, url: str, facts: ObjectFacts) -> None:
        """For the next range."""
        with self._lock:
            self._by_name[name] = (url, facts)
            while len(self._by_name) > _N_REMEMBERED:
                self._by_name.popitem(last=False)

    def forget(self, name: str) -> None:
        """It led nowhere."""
        with self._lock:
            self._by_name.pop(name, None)


def _facts_of_head(answer: Answer, name: str) -> ObjectFacts | None:
    """What a head says of an object; a redirect within the hub says nothing."""
    headers, came = answer.headers, answer.content_range()
    size = headers.get("X-Linked-Size")
    if size is None and answer.status < 300:
        size = str(came[2]) if came else headers.get("Content-Length")
    if size is None or not size.isdecimal():
        return None
    tag = headers.get("X-Linked-ETag") or headers.get("ETag") or ""
    return ObjectFacts(name, int(size), tag.removeprefix("W/").strip('"') or None)


def _from(asked: Asked, answer: Answer, chunks: Iterator[bytes], offset: int) -> Iterator[bytes]:
    """The body from `offset` on, also if it came whole."""
    came = answer.content_range()
    if came is not None and came[0] != offset:
        raise asked.error(TransferDamagedError, f"bytes from {offset} on were asked for, others came", "try again")
    n_before = 0 if came is not None else offset
    for chunk in chunks:
        if len(chunk) > n_before:
            yield chunk[n_before:]
        n_before = max(0, n_before - len(chunk))


def _range(byte_range: str | None) -> dict[str, str]:
    return {"Range": byte_range} if byte_range else {}
