"""Settings that every protocol and client shares: time-outs, certificates, the URL of an endpoint."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.common.redaction import shown_host

_CONNECT_S: Final = 10.0
_BUNDLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def read_timeout_s(timeout_s: float) -> float:
    """Return for how long a request may receive nothing, where `timeout_s` is allowed in all.

    It is a quarter, so that a stall costs one attempt of several, but at least 10 s, or all of `timeout_s` if shorter.
    """
    return max(timeout_s / 4, min(timeout_s, 10.0))


def connect_timeout_s(timeout_s: float) -> float:
    """Return for how long a connection may take to be made: 10 s, or `timeout_s` if shorter."""
    return min(timeout_s, _CONNECT_S)


def ca_bundle(options: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the file of certificates to trust beside the system's, from options or environment; None if unnamed."""
    named: str | None = options.get("ca_bundle")
    return named or next((path for name in _BUNDLES if (path := environment.get(name))), None)


def read_certificates(path: str) -> bytes:
    """Read the certificates in a PEM file. Raises OptionError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise OptionError(
            f"the certificates that `ca_bundle`, {', '.join(_BUNDLES[:-1])} or {_BUNDLES[-1]} names cannot be read: "
            f"{error}; name a PEM file"
        ) from error


def check_endpoint(endpoint: str | None, *, named: str) -> str | None:
    """Return the URL without a slash at its end. Raises OptionError for anything else; `named` says where it stood.

    A user in it is refused: it would not be sent. No message shows more than the host.
    """
    if endpoint is None:
        return None
    shown = shown_host(endpoint)
    if not endpoint.startswith(("http://", "https://")) or not endpoint.partition("://")[2].strip("/"):
        raise OptionError(f"{named} must be a URL that begins with http:// or https://, got {shown!r}")
    try:
        parts = urllib.parse.urlsplit(endpoint)
        is_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise OptionError(f"{named} is no URL: {shown!r}; check its brackets and its port") from None
    if not is_host:
        raise OptionError(f"{named} names no host, or no port that is one: {shown!r}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise OptionError(
            f"{named} ({shown}) has a user, a query or a fragment, which are not sent: write the host alone, and give "
            "credentials by options or variables"
        )
    return endpoint.rstrip("/")
