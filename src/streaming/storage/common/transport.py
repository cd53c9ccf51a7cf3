"""How a server is reached, whatever its protocol and whoever's client asks: time-outs, certificates, its URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streaming.errors import OptionError

_CONNECT_S: Final = 10.0
_BUNDLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def read_timeout_s(timeout_s: float) -> float:
    """How long no byte may come before a request is given up, where `timeout_s` is allowed in all.

    A quarter of it, so that a stall costs one try of several; but up to 10 s if so much is allowed.
    """
    return max(timeout_s / 4, min(timeout_s, 10.0))


def connect_timeout_s(timeout_s: float) -> float:
    """How long a connection may take."""
    return min(timeout_s, _CONNECT_S)


def ca_bundle(options: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """The file of certificates to trust beside the system's, if one is named."""
    named: str | None = options.get("ca_bundle")
    return named or next((path for name in _BUNDLES if (path := environment.get(name))), None)


def read_certificates(path: str) -> bytes:
    """The certificates in a PEM file. Raises OptionError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise OptionError(
            f"the certificates that `ca_bundle`, {', '.join(_BUNDLES[:-1])} or {_BUNDLES[-1]} names cannot be read: "
            f"{error}; name a PEM file"
        ) from error


def check_endpoint(endpoint: str | None, *, named: str) -> str | None:
    """The URL without a slash at its end. Raises OptionError for what is none; `named` says where it was given."""
    if endpoint is None:
        return None
    if not endpoint.startswith(("http://", "https://")) or not endpoint.partition("://")[2].strip("/"):
        raise OptionError(f"{named} must be a URL that begins with http:// or https://, got {endpoint!r}")
    return endpoint.rstrip("/")
