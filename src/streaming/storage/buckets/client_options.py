"""Options of obstore's HTTP client, the same for all buckets: time-outs, proxy, certificates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.common.transport import ca_bundle, connect_timeout_s, read_certificates, read_timeout_s
from streaming.storage.settings import StoreSettings

NO_RETRIES: Final[Any] = {"max_retries": 0, "retry_timeout": timedelta(0)}
"""Callers of a store retry."""

_TRANSFER_S: Final = 7 * 24 * 3600.0  # a transfer may take long while bytes come


def client_options(
    settings: StoreSettings,
    options: Mapping[str, Any],
    *,
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Return the client's options, from checked `storage_options`, then the environment.

    The client itself reads `SSL_CERT_FILE`, and `HTTP_PROXY` and its kin.
    """
    read_s = settings.timeout_s if settings.for_uploads else read_timeout_s(settings.timeout_s)
    chosen: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=options.get("connect_timeout") or connect_timeout_s(settings.timeout_s)),
        "read_timeout": timedelta(seconds=options.get("read_timeout") or read_s),
        "timeout": timedelta(seconds=_TRANSFER_S),
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
