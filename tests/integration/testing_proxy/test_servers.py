"""A FaultProxy before each of our servers passes uploads and downloads on, and injects faults."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from streaming.testing import Fault, FaultProxy, FaultRule
from streaming.testing.azure import ACCOUNT, AzureServer
from streaming.testing.gcs import GcsServer
from streaming.testing.program import request
from streaming.testing.web import WebServer
from support.fetcher_world import content
from support.servers import started

CONTENT = content("content", 9_000_000)

Ask = Callable[[int], Any]
"""What is done with a server, given the port at which it is reached."""


@pytest.mark.parametrize(
    ("server", "put", "get", "path"),
    [
        (
            WebServer.started,
            lambda port: request(port, "PUT", "/plain/folder/name", CONTENT),
            lambda port: request(port, "GET", "/plain/folder/name"),
            "/plain/folder/name",
        ),
        (
            AzureServer.started,
            lambda port: AzureServer(port).put("folder/name", CONTENT),
            lambda port: AzureServer(port).get("folder/name"),
            f"/{ACCOUNT}/box/folder/name",
        ),
        (
            GcsServer.started,
            lambda port: GcsServer(port).put("name", CONTENT),
            lambda port: request(port, "GET", "/storage/v1/b/bkt/o/name?alt=media"),
            "/storage/v1/b/bkt/o/name",
        ),
    ],
    ids=["nginx", "Azure", "Google"],
)
def test_objects_pass_in_both_directions(
    server: Callable[[], contextlib.AbstractContextManager[Any]], put: Ask, get: Ask, path: str
) -> None:
    """9 MB pass up and down, through the proxy and around it. A fault replaces the server's answer, once."""
    for running in started(server()):
        with FaultProxy.started(upstream=f"127.0.0.1:{running.port}") as proxy:
            put(proxy.port)
            assert get(proxy.port) == get(running.port) == CONTENT
            put(running.port)
            assert get(proxy.port) == CONTENT
            assert proxy.counts().bytes_by_path[path] >= 2 * len(CONTENT)
            proxy.set_rules(FaultRule(Fault(status=503), times=1))
            with pytest.raises(OSError, match="503"):
                get(proxy.port)
            assert get(proxy.port) == CONTENT
