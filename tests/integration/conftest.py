"""What the tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streaming.testing import FaultProxy, S3Server
from support.servers import started


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One real S3 server for all tests; each test takes its own prefix."""
    yield from started(S3Server.started())


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A store that can be slow and broken, set as the S3 endpoint of this process and its children."""
    with FaultProxy.started(buckets={}) as store:
        for name, value in store.variables().items():
            monkeypatch.setenv(name, value)
        yield store
