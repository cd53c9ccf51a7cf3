"""A FaultProxy as a store, and one before the S3 server: one process each for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streaming.testing import FaultProxy, ProxyLimits
from streaming.testing.s3 import S3Server
from support.stores import contents

SIZES = {"empty": 0, "small": 1000, "large": 40 << 20, "folder/a": 1, "folder/b": 2}


@pytest.fixture(scope="session")
def started_origin() -> Iterator[FaultProxy]:
    """A store with objects in `bkt`."""
    with FaultProxy.started(buckets={}) as proxy:
        proxy.add_bytes("bkt", contents(SIZES))
        yield proxy


@pytest.fixture
def origin(started_origin: FaultProxy) -> Iterator[FaultProxy]:
    """The store with its objects, without rules, limits and counts."""
    yield from as_new(started_origin)


@pytest.fixture(scope="session")
def started_before_s3(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the real S3 server."""
    with FaultProxy.started(upstream=f"127.0.0.1:{s3_server.port}") as proxy:
        yield proxy


@pytest.fixture
def before_s3(started_before_s3: FaultProxy) -> Iterator[FaultProxy]:
    """The proxy before S3, without rules, limits and counts."""
    yield from as_new(started_before_s3)


def as_new(proxy: FaultProxy) -> Iterator[FaultProxy]:
    """Yield the proxy without rules, limits and counts."""
    proxy.set_rules()
    proxy.set_limits(ProxyLimits())
    proxy.reset_counts()
    yield proxy
