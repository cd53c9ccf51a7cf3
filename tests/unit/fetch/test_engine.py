"""What the engine decides where moments meet that a real fetcher brings together once in a thousand runs."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming.cache.files import Temporaries
from streaming.errors import CredentialsWantedError
from streaming.fetch.attempts import Lanes
from streaming.fetch.credentials import Credentials, Wallet
from streaming.fetch.engine import Engine
from streaming.fetch.policy import Limits
from streaming.fetch.protocol import Hello, StreamConfig
from streaming.fetch.tally import Tally
from streaming.fetch.task import FileTask
from streaming.fetch.transfer import Means
from streaming.storage.local import FolderStore
from streaming.storage.store import Store
from support.fetcher_world import PATIENCE_S, content, filled, wait_until


def test_a_transfer_that_just_missed_the_credentials_is_begun_again(tmp_path: Path) -> None:
    """It found none, they came, all lists were told again, and only then did it end: nobody else would ask for it."""
    needs = filled(tmp_path / "source", 1, 1000)
    config = StreamConfig(str(tmp_path / "source"), str(tmp_path / "cache"), purse="job.0")
    wallet, has_looked, may_end = Wallet(), threading.Event(), threading.Event()

    def open_store(config: StreamConfig) -> Store:
        try:
            wallet.get(config.purse)
        except CredentialsWantedError:
            has_looked.set()
            assert may_end.wait(PATIENCE_S)
            raise
        return FolderStore(config.remote)

    with ThreadPoolExecutor(1) as connections:
        means = Means(open_store, wallet, Temporaries(umask=0o022), Lanes(), connections, random.Random(0))
        engine = Engine(means, Tally(), Limits())
    engine.opened(Hello(0, "", "job", (config,)))
    task = FileTask.of(needs[0], config)
    engine.announce("job", "reader", [task])
    assert has_looked.wait(PATIENCE_S)
    wallet.put("job.0", Credentials({}, time.time() + 3600))
    engine.announce("job", "reader", [task])
    may_end.set()
    wait_until("it has come", task.is_done)
    assert (tmp_path / "cache" / "0").read_bytes() == content("0", 1000)
