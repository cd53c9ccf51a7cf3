"""HTTP for the stores whose interface obstore does not speak: pooled connections, one try each, answers as our kinds.

urllib3 sends the requests. Redirects are not followed here: who asks knows where its credentials may go.
"""

from __future__ import annotations

import email.utils
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.storage.options import first_set, imported

if TYPE_CHECKING:
    import urllib3

_CHUNK_BYTES: Final = 1 << 20
_N_CONNECTIONS: Final = 64  # kept per host
_CONNECT_S: Final = 10.0
_REASON_BYTES: Final = 4096  # of an error's body, which are read
_RESET_IN: Final = re.compile(r"\bt\s*=\s*(\d+)")  # RateLimit: "api";r=0;t=55
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request is about, for the words of its errors."""

    what: str  # the object or place
    where: str  # the host that is asked
    who: str  # as whom we ask

    def error(self, kind: type[StorageError], happened: str, check: str) -> StorageError:
        """An error that says all of it."""
        return kind(f"{self.what}: {happened}. Asked at {self.where} with {self.who}; {check}")


@dataclass(frozen=True, slots=True)
class Answer:
    """A head that came, and its body on the way; no error."""

    status: int
    headers: Mapping[str, str]  # looked up in any case of letters
    body: urllib3.BaseHTTPResponse

    def content_range(self) -> tuple[int, int, int] | None:
        """First byte, the one after the last, and the size of the whole, if this is a part."""
        found = _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
        return (int(found[1]), int(found[2]) + 1, int(found[3])) if found else None


class Web:
    """Owns the connections to hosts, for many threads."""

    def __init__(self, environment: Mapping[str, str], timeout_s: float, *, extra: str) -> None:
        self._urllib3 = imported("urllib3", package="urllib3", extra=extra, purpose="reading over HTTP")
        self._proxies = _proxies(environment)
        settings: dict[str, Any] = {
            "maxsize": _N_CONNECTIONS,
            "retries": False,
            "timeout": self._urllib3.Timeout(connect=min(timeout_s, _CONNECT_S), read=timeout_s),
            "ca_certs": first_set(environment, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"),
        }
        self._direct = self._urllib3.PoolManager(**settings)
        self._by_proxy = {
            scheme: self._urllib3.ProxyManager(url, **settings)
            for scheme, url in self._proxies.items()
            if scheme in ("http", "https")
        }

    def ask(
        self,
        asked: Asked,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: Any = None,
        takes: frozenset[int] = frozenset(),
    ) -> Answer:
        """The answer to one request, if its status is below 300 or one that the caller takes; else our error for it."""
        sent = {"Accept-Encoding": "identity", "User-Agent": "streaming-dataset", **headers}
        try:
            response = self._manager(url).request(
                method, url, headers=sent, body=body, redirect=False, preload_content=False, decode_content=False
            )
        except self._urllib3.exceptions.HTTPError as error:
            raise self._unreachable(asked, error) from error
        if response.status < 300 or response.status in takes:
            return Answer(response.status, response.headers, response)
        try:
            reason = response.read(_REASON_BYTES)
        except self._urllib3.exceptions.HTTPError:
            reason = b""
        finally:
            response.close()
        raise error_of(asked, response.status, response.headers, reason)

    def read(self, asked: Asked, answer: Answer) -> bytes:
        """The whole body."""
        return b"".join(self.chunks(asked, answer))

    def chunks(self, asked: Asked, answer: Answer) -> Generator[bytes]:
        """The body, in order; TransferDamagedError if it ends before its length."""
        body = answer.body
        try:
            while chunk := body.read(_CHUNK_BYTES):
                yield chunk
            body.release_conn()
        except self._urllib3.exceptions.ReadTimeoutError as error:
            raise self._unreachable(asked, error) from error
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            raise asked.error(
                TransferDamagedError,
                f"the connection broke before all bytes had come ({error})",
                "check the network, and proxies",
            ) from error
        finally:
            body.close()

    def _manager(self, url: str) -> Any:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in self._by_proxy or _is_direct(parts.hostname or "", self._proxies):
            return self._direct
        return self._by_proxy[parts.scheme]

    def _unreachable(self, asked: Asked, error: Exception) -> StorageError:
        if isinstance(error, self._urllib3.exceptions.ReadTimeoutError):
            happened = "the host said nothing for too long"
        elif isinstance(error, self._urllib3.exceptions.LocationValueError):
            return asked.error(OptionError, f"this is no address ({error})", "check the endpoint")  # type: ignore[arg-type]
        else:
            happened = f"no answer ({str(error)[:300]})"
        check = "check the endpoint, the network, certificates, and proxies (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)"
        return asked.error(StoreUnreachableError, happened, check)


def error_of(asked: Asked, status: int, headers: Mapping[str, str], reason: bytes) -> StorageError:
    """What an answer that is none means."""
    text = " ".join(reason[:300].decode(errors="replace").split()) or headers.get("X-Error-Message", "")
    code = headers.get("X-Error-Code", "")  # of the Hugging Face hub
    told = ": ".join(part for part in (code, text) if part)
    happened = f"the answer was {status}{f' ({told})' if told else ''}"
    if status in (401, 403):
        return asked.error(ObjectForbiddenError, happened, "check the token, and what it may do")
    if status in (404, 410):
        return asked.error(ObjectMissingError, happened, "check the path; what a token may not see can look like this")
    if status in (412, 416):
        return asked.error(TransferDamagedError, happened, "the object changed while it was read: who writes to it?")
    if status in (408, 429) or status >= 500:
        busy = asked.error(StoreBusyError, happened, "try later, or ask less often")
        assert isinstance(busy, StoreBusyError)
        busy.retry_after_s = retry_after_s(headers, now_s=time.time())
        busy.is_throttled = status == 429 or (status == 503 and busy.retry_after_s is not None)
        return busy
    return asked.error(StorageError, happened, "check the path and the endpoint")


def retry_after_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """How long the host asks us to wait: `Retry-After` (seconds or a date), else the reset of `RateLimit`.

    >>> retry_after_s({"RateLimit": '"api";r=0;t=55'}, now_s=0.0)
    55.0
    """
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    if value:
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now_s)
        except ValueError:
            return None
    found = _RESET_IN.search(headers.get("RateLimit", ""))
    return float(found[1]) if found else None


def counted(file: Any, n_bytes: int, moved: Any) -> Iterator[bytes]:
    """The file in pieces for a request's body; `moved` is told how far it is."""
    n_read = 0
    while n_read < n_bytes and (piece := file.read(min(_CHUNK_BYTES, n_bytes - n_read))):
        n_read += len(piece)
        yield piece
        if moved is not None:
            moved(n_read)


def quoted(path: str) -> str:
    """A path as it stands in a URL; slashes stay."""
    return urllib.parse.quote(path, safe="/")


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Scheme to proxy, and `no` to the hosts that have none; lower-case names win, as in other tools."""
    found = {}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        value = first_set(environment, name.lower(), name)
        if value is not None:
            found[name.lower().removesuffix("_proxy")] = value
    everywhere = found.pop("all", None)
    if everywhere is not None:
        found = {"http": everywhere, "https": everywhere} | found
    return {scheme: url if scheme == "no" or "://" in url else f"http://{url}" for scheme, url in found.items()}


def _is_direct(host: str, proxies: dict[str, str]) -> bool:
    return bool(urllib.request.proxy_bypass_environment(host, proxies))  # type: ignore[attr-defined]
