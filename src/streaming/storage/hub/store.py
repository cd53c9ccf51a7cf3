"""`hf://datasets/<org>/<name>[@<revision>]/<path>`: data sets of the Hugging Face hub.

Reading and listing use the hub's HTTP interface directly: its own library keeps whole files and has no deadlines. A
large object is a redirect to a content network. The target is remembered with the version, so that further ranges of
that version cost no request to the hub, which allows few. Writing is in `hub/commits.py` (extra `hf`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from streaming.errors import ObjectMissingError, StorageError, TransferDamagedError
from streaming.storage.common.diagnosis import Access
from streaming.storage.common.redaction import shown_host
from streaming.storage.hub.commits import HubWriter
from streaming.storage.hub.place import HubPlace, hub_place
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.url import Bucket
from streaming.storage.web.answers import HttpAnswer, body_of, content_of, part_of, url_of
from streaming.storage.web.client import HttpClient, HttpSettings

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_N_REDIRECTS: Final = 5
_N_REMEMBERED: Final = 10_000  # redirects


def open_hub(location: Bucket, settings: StoreSettings) -> HubStore:
    """Open `hf://`."""
    options = options_for(location, settings.options)
    place = hub_place(location, options, settings.environment)
    access = Access(str(place), place.endpoint, place.shown_identity, has_credentials=place.token is not None)
    http = HttpSettings.of(settings, options)
    hub = HttpClient(http, access, {"Authorization": f"Bearer {place.token}"} if place.token else None)
    return HubStore(place, hub, HttpClient(http, access), HubWriter(place, access, settings))


class HubStore:
    """The files of a data set below a folder, at one revision."""

    def __init__(self, place: HubPlace, hub: HttpClient, elsewhere: HttpClient, writer: HubWriter) -> None:
        """`hub` sends requests to the hub; `elsewhere`, which has no token, to the targets of its redirects."""
        self._place, self._hub, self._elsewhere = place, hub, elsewhere
        self._writer, self._redirects = writer, _RedirectCache()

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        answer, facts = self._get_answer(name, f"bytes={offset}-" if offset else None, version)
        return content_of(answer, facts, offset, shown=self._shown(name))

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        answer, facts = self._get_answer(name, f"bytes={begin}-{end - 1}", version)
        return part_of(answer, facts, begin, end, shown=self._shown(name))

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store. Simultaneous puts may share a commit."""
        n_bytes = self._writer.put(name, path, moved)
        if (found := self.head(name)).n_bytes != n_bytes:
            raise TransferDamagedError(f"{self._shown(name)}: {n_bytes} bytes were sent, {found.n_bytes} are there")

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store."""
        place, folder = self._place, self._place.in_repo(prefix)
        base = f"{place.endpoint}/api/datasets/{place.repo}/tree/{urllib.parse.quote(place.revision, safe='')}"
        url, n_before = url_of(base, folder, "recursive=true"), len(place.in_repo("x")) - 1
        while url:
            answer = self._hub.request("GET", url, name=prefix, takes=(404,))
            text = answer.read()
            if answer.status == 404:
                if answer.headers.get("X-Error-Code") == "EntryNotFound":
                    return  # a folder that does not exist holds nothing
                raise ObjectMissingError(
                    f"{place}: there is no such data set, or no such revision of it "
                    f"({text[:200].decode(errors='replace')}). Asked at {place.endpoint} with {place.shown_identity}"
                )
            for entry in json.loads(text):
                if entry["type"] == "file":
                    version = (entry.get("lfs") or entry)["oid"]
                    yield ObjectFacts(entry["path"][n_before:], entry["size"], version)
            url = _next_page(url, answer)
            if url and not url.startswith(f"{place.endpoint}/"):  # which would be sent the token
                raise StorageError(f"{place}: the next page of its list is said to be at {shown_host(url)!r}")

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        return self._follow("HEAD", name, None, None)[1]

    def delete(self, name: str) -> None:
        """See Store."""
        with contextlib.suppress(ObjectMissingError):
            self.head(name)
            self._writer.delete(name)

    def _get_answer(self, name: str, byte_range: str | None, version: str | None) -> tuple[HttpAnswer, ObjectFacts]:
        """GET an object, or a range of it, in that version."""
        known = self._redirects.of(name, version) if version is not None else None
        if known is not None:
            url, facts = known
            with contextlib.suppress(StorageError):  # links expire; the hub knows a new one, or the reason
                return self._elsewhere.request("GET", url, name=name, headers=_range(byte_range)), facts
            self._redirects.forget(name)
        answer, facts, link = self._follow("GET", name, byte_range, version)
        if link is not None:
            self._redirects.remember(name, link, facts)
        return answer, facts

    def _follow(
        self, method: str, name: str, byte_range: str | None, version: str | None
    ) -> tuple[HttpAnswer, ObjectFacts, str | None]:
        """Follow redirects to the answer; return it, the facts, and its URL if that is not at the hub.

        HEAD stops at the first answer that holds the facts.
        """
        place, facts = self._place, None
        base = f"{place.endpoint}/datasets/{place.repo}/resolve/{urllib.parse.quote(place.revision, safe='')}"
        url = url_of(base, place.in_repo(name))
        for _ in range(_N_REDIRECTS):
            is_at_hub = url.startswith(f"{place.endpoint}/")
            client = self._hub if is_at_hub else self._elsewhere
            answer = client.request(method, url, name=name, headers=_range(byte_range), takes=_REDIRECTS)
            facts = facts or _facts(answer, name)
            if facts is not None and version not in (None, facts.version):
                raise self._damaged(name, "it changed while it was read", answer)
            if answer.status < 300 or (method == "HEAD" and facts is not None):
                if facts is None:
                    raise self._damaged(name, "the hub does not say how large it is", answer)
                return answer, facts, None if is_at_hub else url
            answer.read()
            target = answer.headers.get("Location", "")
            try:
                url = urllib.parse.urljoin(url, target)
                parts = urllib.parse.urlsplit(url)
                is_web = bool(parts.hostname) and parts.port != 0 and parts.scheme in ("http", "https")
            except ValueError:
                is_web = False
            if not is_web:
                raise StorageError(f"{self._shown(name)}: {place.endpoint} sends us to {shown_host(target)!r}, no URL")
            if place.endpoint.startswith("https:") and not url.startswith("https:"):
                raise StorageError(f"{self._shown(name)}: {place.endpoint} sends us where nothing is encrypted")
        raise StorageError(f"{self._shown(name)}: {place.endpoint} sent us on {_N_REDIRECTS} times; check the endpoint")

    def _shown(self, name: str) -> str:
        return f"{self._place}/{name}"

    def _damaged(self, name: str, what: str, answer: HttpAnswer) -> TransferDamagedError:
        answer.close()
        return TransferDamagedError(f"{self._shown(name)}: {what}; check who writes to it")


class _RedirectCache:
    """Owns the known URLs of objects outside the hub, each for one version."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: OrderedDict[str, tuple[str, ObjectFacts]] = OrderedDict()

    def of(self, name: str, version: str) -> tuple[str, ObjectFacts] | None:
        """Return the URL and facts of this version of the object, if known."""
        with self._lock:
            known = self._by_name.get(name)
        return known if known is not None and known[1].version == version else None

    def remember(self, name: str, url: str, facts: ObjectFacts) -> None:
        """Keep the URL for further ranges."""
        with self._lock:
            self._by_name[name] = (url, facts)
            while len(self._by_name) > _N_REMEMBERED:
                self._by_name.popitem(last=False)

    def forget(self, name: str) -> None:
        """Drop a URL that failed."""
        with self._lock:
            self._by_name.pop(name, None)


def _facts(answer: HttpAnswer, name: str) -> ObjectFacts | None:
    """Read an object's facts from headers; None for a redirect within the hub, which lacks them."""
    linked = answer.headers.get("X-Linked-Size", "")
    body = body_of(answer.status, answer.headers) if answer.status < 300 else None
    n_bytes = int(linked) if linked.isdecimal() else body.n_bytes if body is not None else None
    if n_bytes is None:
        return None
    tag = answer.headers.get("X-Linked-ETag") or answer.headers.get("ETag") or ""
    return ObjectFacts(name, n_bytes, tag.removeprefix("W/").strip('"') or None)


def _next_page(url: str, answer: HttpAnswer) -> str:
    """Return the URL of a list's next page; "" at its end."""
    for link in answer.headers.get("Link", "").split(","):
        target, _, about = link.partition(">")
        if 'rel="next"' in about:
            return urllib.parse.urljoin(url, target.strip().removeprefix("<"))
    return ""


def _range(byte_range: str | None) -> dict[str, str]:
    return {"Range": byte_range} if byte_range else {}
