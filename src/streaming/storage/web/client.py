"""Asking a web server: connections that are kept, time-outs, proxies, certificates, redirects, errors of ours.

For stores whose interface is plain HTTP. It runs anywhere and starts no thread, but a connection must not be shared by
processes, so only the fetcher uses it. urllib3, because it has what the standard library leaves to its user: a pool
that threads share, tunnels through proxies, and time-outs for each read; most environments have it already.
"""

from __future__ import annotations

import ssl
import time
import urllib.parse
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import urllib3
import urllib3.exceptions as theirs
from urllib3.util import Timeout

from streaming.errors import OptionError, StorageError
from streaming.storage.common.meaning import Answer, Asked, Meaning, broken_off, meaning_of, read_answer, unreachable
from streaming.storage.common.transport import ca_bundle, connect_timeout_s, read_certificates, read_timeout_s
from streaming.storage.settings import StoreSettings
from streaming.storage.web.answers import retry_after_s
from streaming.storage.web.proxies import proxy_for

_CHUNK_BYTES: Final = 1 << 18
_ERROR_BYTES: Final = 1 << 14  # as much of an error body as is read
_N_KEPT: Final = 128  # connections per host
_N_REDIRECTS: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_ASKING: Final = ("GET", "HEAD")

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How to ask. Shows no secret."""

    connect_s: float
    read_s: float
    options: Mapping[str, Any] = field(repr=False)  # checked: proxy, no_proxy, ca_bundle
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, settings: StoreSettings, options: Mapping[str, Any]) -> HttpSettings:
        """From what a store is opened with, and its checked options."""
        whole_s = settings.timeout_s
        read_s = whole_s if settings.for_uploads else read_timeout_s(whole_s)
        return cls(
            connect_s=options.get("connect_timeout") or connect_timeout_s(whole_s),
            read_s=options.get("read_timeout") or read_s,
            options=options,
            environment=settings.environment,
        )


class HttpAnswer:
    """An answer that says yes. Its body is read once, or closed."""

    def __init__(self, response: urllib3.BaseHTTPResponse, told: Callable[[Exception], StorageError]) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response, self._told = response, told
        self._let_go = weakref.finalize(self, _let_go, response)

    def __iter__(self) -> Iterator[bytes]:
        """The body as it was sent, in pieces. Raises the kinds of StorageError."""
        try:
            yield from self._response.stream(_CHUNK_BYTES, decode_content=False)
        except (theirs.HTTPError, OSError) as error:
            self.close()
            raise self._told(error) from None
        self._let_go()

    def read(self) -> bytes:
        """The whole body; for small ones."""
        return b"".join(self)

    def close(self) -> None:
        """Read no more of it."""
        self._let_go()


class HttpClient:
    """Owns the connections to the servers of one store. Thread-safe."""

    def __init__(self, settings: HttpSettings, asked: Asked, headers: Headers | None = None) -> None:
        """`headers` (who asks, above all) go with each request, but to no other host than the first.

        A function is asked for them each time: its credentials may have been renewed.
        """
        self._settings, self._asked = settings, asked
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "streaming-dataset"}
        self._private = headers if callable(headers) else lambda: headers or {}
        self._tls: ssl.SSLContext | None = None
        self._managers: dict[str | None, urllib3.PoolManager] = {}

    def ask(
        self,
        method: str,
        url: str,
        *,
        name: str = "",
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        takes: tuple[int, ...] = (),
    ) -> HttpAnswer:
        """The answer, if its status is a good one or among `takes`; else the kind of StorageError that it means.

        `name` is the object's, for the error. A GET or HEAD follows redirects.
        """
        first, n_redirects = _origin(url), 0
        while True:
            private = self._private() if _origin(url) == first else {}
            response = self._request(method, url, {**self._headers, **private, **(headers or {})}, body, name)
            if 200 <= response.status < 300 or response.status in takes:
                answer = HttpAnswer(response, lambda error: self._broken(error, name))
                if method == "HEAD":
                    answer.read()
                return answer
            target = response.headers.get("Location")
            if response.status not in _REDIRECTS or method not in _ASKING or not target:
                raise self._refused(response, method).error(name, self._asked)
            self._beginning(response)
            url, was = urllib.parse.urljoin(url, target), url
            n_redirects += 1
            self._check_redirect(was, url, n_redirects, name)

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: Any, name: str
    ) -> urllib3.BaseHTTPResponse:
        try:
            return self._manager(url).urlopen(
                method, url, body=body, headers=headers, redirect=False, retries=False, preload_content=False
            )
        except (theirs.HTTPError, OSError) as error:
            raise _without_answer(error).error(name, self._asked) from None

    def _manager(self, url: str) -> urllib3.PoolManager:
        """The pool of connections on the way that this URL takes."""
        proxy = proxy_for(url, self._settings.options, self._settings.environment)
        manager = self._managers.get(proxy)
        if manager is None:  # two threads may both make one; one of them is kept
            manager = self._managers.setdefault(proxy, self._new_manager(proxy))
        return manager

    def _new_manager(self, proxy: str | None) -> urllib3.PoolManager:
        if self._tls is None:
            self._tls = _trust(ca_bundle(self._settings.options, self._settings.environment))
        options: dict[str, Any] = {
            "maxsize": _N_KEPT,
            "timeout": Timeout(connect=self._settings.connect_s, read=self._settings.read_s),
            "ssl_context": self._tls,
            "blocksize": _CHUNK_BYTES,
        }
        if proxy is None:
            return urllib3.PoolManager(**options)
        user = urllib.parse.urlsplit(proxy)
        if user.username:
            words = f"{urllib.parse.unquote(user.username)}:{urllib.parse.unquote(user.password or '')}"
            options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=words)
        try:
            return urllib3.ProxyManager(proxy, proxy_ssl_context=self._tls, **options)
        except theirs.HTTPError as error:
            raise OptionError(
                f"the proxy for {self._asked.endpoint} is no URL of one ({type(error).__name__})"
            ) from None

    def _refused(self, response: urllib3.BaseHTTPResponse, method: str) -> Meaning:
        text = self._beginning(response)
        wait_s = retry_after_s(response.headers, time.time())
        answer = read_answer(response.status, text, headers=response.headers, retry_after_s=wait_s)
        target = response.headers.get("Location")
        if response.status in _REDIRECTS:
            what = f"the server answered {response.status}: {method} is to be sent to {_without_query(target or '?')}"
            return Meaning(meaning_of(answer, has_credentials=False).kind, what, "write the new place into the URL")
        return meaning_of(answer, has_credentials=self._asked.has_credentials)

    def _beginning(self, response: urllib3.BaseHTTPResponse) -> str:
        """As much of a body as says why; mostly all of it, so that the connection can be kept."""
        try:
            return response.read(_ERROR_BYTES, decode_content=False).decode("utf-8", "replace")
        except (theirs.HTTPError, OSError):  # the status says enough
            return ""
        finally:
            response.close()

    def _check_redirect(self, was: str, url: str, n_redirects: int, name: str) -> None:
        what = None
        if n_redirects > _N_REDIRECTS:
            what = f"the server sent us on {n_redirects} times"
        elif not url.startswith(("https://", "http://" if was.startswith("http://") else "https://")):
            what = f"the server sends us to {_without_query(url)}, where nothing is encrypted"
        if what is not None:
            meaning = meaning_of(Answer(301), has_credentials=False)
            raise Meaning(meaning.kind, what, "check the URL").error(name, self._asked)

    def _broken(self, error: Exception, name: str) -> StorageError:
        meaning = _without_answer(error) if isinstance(error, theirs.ReadTimeoutError) else broken_off()
        return meaning.error(name, self._asked)


def _without_answer(error: Exception) -> Meaning:
    """What it means that a request brought nothing."""
    if isinstance(error, theirs.ProxyError):
        return unreachable(f"the proxy gives no way to the server ({error.original_error})")
    if isinstance(error, theirs.ConnectTimeoutError):
        return unreachable("no connection to the server in time")
    if isinstance(error, theirs.ReadTimeoutError | TimeoutError):
        return unreachable("the store said nothing for too long")
    if isinstance(error, theirs.NameResolutionError):
        return unreachable("the server's name is not known (DNS)")
    if isinstance(error, theirs.SSLError | ssl.SSLError):
        return unreachable(f"no encrypted connection to the server ({error}); `ca_bundle` names certificates to trust")
    if isinstance(error, theirs.NewConnectionError):
        return unreachable(f"no connection to the server ({str(error).rpartition(': ')[2]})")
    if isinstance(error, theirs.LocationValueError):
        return Meaning(StorageError, f"the URL cannot be asked ({error})", "check it")
    return unreachable(f"the connection broke before an answer came ({error})")


def _trust(bundle: str | None) -> ssl.SSLContext:
    """The system's certificates (or those of SSL_CERT_FILE), and those of a file."""
    context = ssl.create_default_context()
    if bundle is not None:
        read_certificates(bundle)  # says what is wrong with the file
        try:
            context.load_verify_locations(cafile=bundle)
        except ssl.SSLError as error:
            raise OptionError(f"{bundle} holds no certificates in PEM form: {error}") from error
    return context


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _without_query(url: str) -> str:
    return url.partition("?")[0]


def _let_go(response: urllib3.BaseHTTPResponse) -> None:
    """Closes the connection if more would come on it; one whose answer was read whole is back in the pool already."""
    response.close()
