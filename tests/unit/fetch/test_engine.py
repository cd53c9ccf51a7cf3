"""What the engine decides where moments meet that a real fetcher brings together once in a thousand runs."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming.cache.files import Temporaries
from streaming.errors import CredentialsWantedError
from streaming.fetch.decide.transfers import FetchLimits, Transfer
from streaming.fetch.transfer.counters import Counters
from streaming.fetch.transfer.engine import Engine
from streaming.fetch.transfer.stores import StoreGates
from streaming.fetch.transfer.whole_file import TransferContext
from streaming.fetch.wire.credentials import CredentialCache, Credentials
from streaming.fetch.wire.protocol import Hello, StreamConfig
from streaming.storage.local import FolderStore
from streaming.storage.store import Store
from support.fetcher_world import PATIENCE_S, content, filled, wait_until
from support.fetching import stream_config


def test_a_transfer_that_just_missed_the_credentials_is_begun_again(tmp_path: Path) -> None:
    """It found none, they came, all lists were told again, and only then did it end: nobody else would ask for it."""
    needs = filled(tmp_path / "source", 1, 1000)
    config = stream_config(str(tmp_path / "source"), str(tmp_path / "cache"), credentials_key="job.0")
    credential_cache, has_looked, may_end = CredentialCache(), threading.Event(), threading.Event()

    def open_store(config: StreamConfig) -> Store:
        try:
            credential_cache.get(config.credentials_key)
        except CredentialsWantedError:
            has_looked.set()
            assert may_end.wait(PATIENCE_S)
            raise
        return FolderStore(config.remote)

    with ThreadPoolExecutor(1) as connections:
        means = TransferContext(
            open_store, credential_cache, Temporaries(umask=0o022), StoreGates(), connections, random.Random(0)
        )
        engine = Engine(means, Counters(), FetchLimits())
    engine.opened(Hello(0, "", "job", (config,)))
    task = Transfer.of(needs[0], config)
    engine.announce("job", "reader", [task])
    assert has_looked.wait(PATIENCE_S)
    credential_cache.put("job.0", Credentials({}, time.time() + 3600))
    engine.announce("job", "reader", [task])
    may_end.set()
    wait_until("it has come", task.is_done)
    assert (tmp_path / "cache" / "0").read_bytes() == content("0", 1000)
