"""How obstore's HTTP client is to behave: time-outs, proxy, certificates. The same for all buckets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.settings import StoreSettings

NO_RETRIES: Final[Any] = {"max_retries": 0, "retry_timeout": timedelta(0)}
"""Who calls a store counts attempts."""

_CONNECT_S: Final = 10.0
_WHOLE_S: Final = 7 * 24 * 3600.0  # a transfer may take long, as long as it moves
_BUNDLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def client_options(
    settings: StoreSettings,
    options: Mapping[str, Any],
    *,
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """The client's options, from checked `storage_options` before the environment.

    `HTTP_PROXY` and its kin, and `SSL_CERT_FILE`, are read by the client itself.
    """
    read_s = settings.timeout_s if settings.for_uploads else read_timeout_s(settings.timeout_s)
    chosen: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=options.get("connect_timeout") or connect_timeout_s(settings.timeout_s)),
        "read_timeout": timedelta(seconds=options.get("read_timeout") or read_s),
        "timeout": timedelta(seconds=_WHOLE_S),
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
    }
    if "proxy" in options:
        chosen["proxy_url"] = options["proxy"]
        if "no_proxy" in options:
            chosen["proxy_excludes"] = options["no_proxy"]
    elif "no_proxy" in options:
        raise OptionError("storage_options: 'no_proxy' goes with 'proxy'; for HTTP_PROXY there is NO_PROXY")
    bundle = ca_bundle(options, settings.environment)
    if bundle is not None:
        chosen["root_certificate"] = read_certificates(bundle)
    if headers:
        chosen["default_headers"] = dict(headers)
    return chosen


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
