"""Proxies: which requests go through one."""

from __future__ import annotations

import pytest

from streaming.storage.web.proxies import is_excluded, proxy_for


@pytest.mark.parametrize(
    ("url", "options", "environment", "expected"),
    [
        ("http://h/x", {}, {}, None),
        ("http://h/x", {}, {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://h/x", {}, {"http_proxy": "p:1", "HTTP_PROXY": "q:1"}, "http://p:1"),
        ("https://h/x", {}, {"HTTP_PROXY": "http://p:1"}, None),
        ("https://h/x", {}, {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://h/x", {}, {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("http://h/x", {}, {"HTTP_PROXY": "http://p:1", "NO_PROXY": "h"}, None),
        ("http://h/x", {"proxy": "http://o:1"}, {"HTTP_PROXY": "http://p:1", "NO_PROXY": "h"}, "http://o:1"),
        ("http://h/x", {"proxy": "http://o:1", "no_proxy": "h"}, {}, None),
    ],
)
def test_a_request_goes_directly_or_through_a_proxy(
    url: str, options: dict[str, str], environment: dict[str, str], expected: str | None
) -> None:
    """Options come first, then the common variables."""
    assert proxy_for(url, options, environment) == expected


@pytest.mark.parametrize(
    ("host", "port", "excluded", "expected"),
    [
        ("a.example.com", None, "example.com", True),
        ("a.example.com", None, ".example.com", True),
        ("a.example.com", None, "*.example.com", True),
        ("example.com", None, "example.com", True),
        ("badexample.com", None, "example.com", False),
        ("A.Example.com", None, "x, a.example.COM ", True),
        ("h", 8080, "h:8080", True),
        ("h", 8081, "h:8080", False),
        ("10.1.2.3", None, "10.0.0.0/8", True),
        ("11.1.2.3", None, "10.0.0.0/8", False),
        ("h", None, "10.0.0.0/8", False),
        ("h", None, "*", True),
        ("h", None, "", False),
        ("127.0.0.1", 80, "localhost,127.0.0.1", True),
    ],
)
def test_a_list_of_exceptions_covers_a_host_or_not(host: str, port: int | None, excluded: str, expected: bool) -> None:
    """Entries are names, suffixes, ports and networks."""
    assert is_excluded(host, port, excluded) is expected
