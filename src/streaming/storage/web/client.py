"""The HTTP client of stores: pooled connections, time-outs, proxies, certificates, redirects, this package's errors.

It runs anywhere and starts no thread, but processes must not share a connection, so only the fetcher uses it. It is
built on urllib3, which has what the standard library leaves to its user: a pool that threads share, tunnels through
proxies, and a time-out for each read; most environments have it already.
"""

from __future__ import annotations

import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import urllib3
import urllib3.exceptions as theirs
from urllib3.util import Timeout

from streaming.errors import OptionError, StorageError
from streaming.storage.common.diagnosis import (
    Access,
    Diagnosis,
    Refusal,
    broken_off,
    diagnose,
    read_refusal,
    unreachable,
)
from streaming.storage.common.redaction import shown_host, shown_url
from streaming.storage.common.transport import ca_bundle, connect_timeout_s, read_certificates, read_timeout_s
from streaming.storage.settings import StoreSettings
from streaming.storage.web.answers import HttpAnswer, retry_after_s
from streaming.storage.web.proxies import proxy_for

_BLOCK_BYTES: Final = 1 << 18  # of an upload
_ERROR_BYTES: Final = 1 << 14  # of an error body, at most
_N_KEPT: Final = 128  # connections per host
_N_REDIRECTS: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_FOLLOWS: Final = ("GET", "HEAD")

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Time-outs, and where proxies and certificates are named. Its `repr` shows no secret."""

    connect_s: float
    read_s: float
    options: Mapping[str, Any] = field(repr=False)  # checked: proxy, no_proxy, ca_bundle
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, settings: StoreSettings, options: Mapping[str, Any]) -> HttpSettings:
        """Take them from a store's settings and its checked options."""
        whole_s = settings.timeout_s
        read_s = whole_s if settings.for_uploads else read_timeout_s(whole_s)
        return cls(
            connect_s=options.get("connect_timeout") or connect_timeout_s(whole_s),
            read_s=options.get("read_timeout") or read_s,
            options=options,
            environment=settings.environment,
        )


class HttpClient:
    """Owns the connections to the servers of one store. Thread-safe."""

    def __init__(self, settings: HttpSettings, access: Access, headers: Headers | None = None) -> None:
        """Send `headers`, such as credentials, with each request, but to no other host than the first.

        A function is called for each request, since its credentials may have been renewed.
        """
        self._settings, self._access = settings, access
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "streaming-dataset"}
        self._private = headers if callable(headers) else lambda: headers or {}
        self._tls: ssl.SSLContext | None = None
        self._managers: dict[str | None, urllib3.PoolManager] = {}

    def request(
        self,
        method: str,
        url: str,
        *,
        name: str = "",
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        takes: tuple[int, ...] = (),
    ) -> HttpAnswer:
        """Send a request; return its answer. Any status but 2xx and those in `takes` raises the StorageError it means.

        `name` is the object's, for the error. GET and HEAD follow redirects.
        """
        first, n_redirects = _origin(url), 0
        while True:
            private = self._private() if _origin(url) == first else {}
            response = self._send(method, url, {**self._headers, **private, **(headers or {})}, body, name)
            if 200 <= response.status < 300 or response.status in takes:
                answer = HttpAnswer(response, lambda error: self._broken(error, name))
                if method == "HEAD":
                    answer.read()
                return answer
            target = response.headers.get("Location")
            if response.status not in _REDIRECTS or method not in _FOLLOWS or not target:
                raise self._refused(response, method).error(name, self._access)
            self._beginning(response)
            n_redirects += 1
            url = self._redirected(url, target, n_redirects, name)

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: Any, name: str
    ) -> urllib3.BaseHTTPResponse:
        manager = self._manager(url)  # may raise OptionError, which is a ValueError
        try:
            return manager.urlopen(
                method, url, body=body, headers=headers, redirect=False, retries=False, preload_content=False
            )
        except (theirs.HTTPError, OSError, ValueError) as error:  # a ValueError: what no header or URL can hold
            raise _without_answer(error).error(name, self._access) from None

    def _manager(self, url: str) -> urllib3.PoolManager:
        """Return the pool of connections for the URL's proxy, or for none."""
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
            "blocksize": _BLOCK_BYTES,
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
                f"the proxy for {self._access.endpoint} is no URL of one ({type(error).__name__})"
            ) from None

    def _refused(self, response: urllib3.BaseHTTPResponse, method: str) -> Diagnosis:
        text = self._beginning(response)
        wait_s = retry_after_s(response.headers, time.time())
        refusal = read_refusal(response.status, text, headers=response.headers, retry_after_s=wait_s)
        target = response.headers.get("Location")
        if response.status in _REDIRECTS:
            what = f"the server answered {response.status}: {method} is to be sent to {_without_query(target or '?')}"
            return Diagnosis(diagnose(refusal, has_credentials=False).kind, what, "write the new place into the URL")
        return diagnose(refusal, has_credentials=self._access.has_credentials)

    def _beginning(self, response: urllib3.BaseHTTPResponse) -> str:
        """Read the part of an error body that gives the reason; mostly all of it, which keeps the connection usable."""
        try:
            return response.read(_ERROR_BYTES, decode_content=False).decode("utf-8", "replace")
        except (theirs.HTTPError, OSError):  # the status says enough
            return ""
        finally:
            response.close()

    def _redirected(self, was: str, target: str, n_redirects: int, name: str) -> str:
        """Return where a redirect leads. Raises StoreMovedError if nobody should go there."""
        what = None
        try:
            url = urllib.parse.urljoin(was, target)
            _origin(url)
        except ValueError:
            url, what = was, f"the server sends us to {shown_host(target)!r}, which is no URL"
        if n_redirects > _N_REDIRECTS:
            what = f"the server sent us on {n_redirects} times"
        elif what is None and not url.startswith(("http://", "https://")):
            what = f"the server sends us to {_without_query(url)!r}, which is no place on the web"
        elif what is None and was.startswith("https://") and not url.startswith("https://"):
            what = f"the server sends us to {_without_query(url)}, where nothing is encrypted"
        if what is not None:
            kind = diagnose(Refusal(301), has_credentials=False).kind
            raise Diagnosis(kind, what, "check the URL").error(name, self._access)
        return url

    def _broken(self, error: Exception, name: str) -> StorageError:
        diagnosis = _without_answer(error) if isinstance(error, theirs.ReadTimeoutError) else broken_off()
        return diagnosis.error(name, self._access)


def _without_answer(error: Exception) -> Diagnosis:
    """Diagnose a request that got no answer."""
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
        return Diagnosis(StorageError, f"the URL cannot be asked ({error})", "check it")
    if isinstance(error, ValueError) and not isinstance(error, theirs.HTTPError | OSError):
        what = (
            "the request cannot be sent: its URL, or a header such as a token, holds what none can"  # and no more of it
        )
        return Diagnosis(StorageError, what, "check credentials for line breaks and other strange characters")
    return unreachable(f"the connection broke before an answer came ({error})")


def _trust(bundle: str | None) -> ssl.SSLContext:
    """Trust the system's certificates (or those of SSL_CERT_FILE), and those in a file."""
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
    """Return the place of a redirect for messages: queries hold signatures, and a user may stand before the host."""
    return shown_url(url)
