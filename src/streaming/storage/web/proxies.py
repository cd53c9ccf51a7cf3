"""Which proxy a request goes through. Pure."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Mapping
from typing import Any


def proxy_for(url: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy from `storage_options`, else `HTTP_PROXY` and its kin; None for a direct connection.

    >>> proxy_for("http://10.0.0.7/x", {}, {"HTTP_PROXY": "http://gate:3128", "NO_PROXY": "10.0.0.0/8"})
    """
    parts = urllib.parse.urlsplit(url)
    if "proxy" in options:
        proxy, excluded = options["proxy"], options.get("no_proxy", "")
    else:
        proxy = _variable(environment, f"{parts.scheme}_proxy") or _variable(environment, "all_proxy")
        excluded = _variable(environment, "no_proxy") or ""
    if not proxy or is_excluded(parts.hostname or "", parts.port, excluded):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_excluded(host: str, port: int | None, excluded: str) -> bool:
    """Whether a list like that of `NO_PROXY` (names, suffixes of names, addresses, networks, `*`) covers a host."""
    return any(_covers(entry.strip().lower(), host.lower(), port) for entry in excluded.split(",") if entry.strip())


def _covers(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdigit() and "." in f"{name}.":
        if port is not None and int(entry_port) != port:
            return False
        entry = name.strip("[]") or entry
    suffix = entry.removeprefix("*").removeprefix(".")
    return host == suffix or host.endswith(f".{suffix}")


def _variable(environment: Mapping[str, str], name: str) -> str | None:
    """Look the variable up in lower case first, as other programs do."""
    return environment.get(name) or environment.get(name.upper()) or None
