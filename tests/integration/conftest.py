"""What the tests with real processes share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from streaming.testing.s3 import S3Server
from support.fetcher_world import FaultyStore, started_s3_server


@pytest.fixture(scope="session", autouse=True)
def small_forks() -> None:
    """Children that tests fork do not walk through, and so copy, all that was imported here."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One real S3 server for all tests; each test takes its own prefix."""
    yield from started_s3_server()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """A store that can be slow and broken, set as the S3 endpoint of this process and its children."""
    with FaultyStore.started() as store:
        for name, value in store.variables().items():
            monkeypatch.setenv(name, value)
        yield store
