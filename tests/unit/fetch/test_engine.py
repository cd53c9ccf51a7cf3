"""What the engine decides where moments meet that a real fetcher brings together once in a thousand runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming.cache.files import Temporaries
from streaming.fetch.decide.transfers import Account, FetchLimits, Transfer
from streaming.fetch.transfer.engine import Engine
from streaming.fetch.transfer.stores import StoreAccess
from streaming.fetch.transfer.whole_file import TransferContext, is_on_disk
from streaming.fetch.wire.credentials import Credentials
from streaming.fetch.wire.protocol import Hello
from streaming.storage.connect import Stores
from streaming.storage.store import Store
from streaming.storage.url import Location
from support.fetcher_world import PATIENCE_S, content, filled, wait_until
from support.fetching import stream_config


class LateAccess(StoreAccess):
    """Access to folders, of which the first opening that finds no credentials is held up."""

    def __init__(self) -> None:
        super().__init__(Stores())
        self.has_looked, self.may_end = threading.Event(), threading.Event()

    def open(self, remote: Location, account: Account, *, for_uploads: bool = False) -> Store:
        has_credentials = self.credentials.has(account.credentials_key)
        if not has_credentials:
            self.has_looked.set()
            assert self.may_end.wait(PATIENCE_S)
            self.credentials.drop(account.credentials_key)  # as if it had looked before they came
        try:
            return super().open(remote, account, for_uploads=for_uploads)
        finally:
            if not has_credentials:
                self.credentials.put(account.credentials_key, Credentials({}, time.time() + 3600))


def test_a_transfer_that_just_missed_the_credentials_is_begun_again(tmp_path: Path) -> None:
    """It found none, they came, all lists were announced again, and only then did it end: nobody else would ask."""
    files = filled(tmp_path / "source", 1, 1000)
    config = stream_config(str(tmp_path / "source"), str(tmp_path / "cache"), credentials_key="job.0")
    access = LateAccess()
    with ThreadPoolExecutor(1) as connections:
        engine = Engine(TransferContext(access, Temporaries(umask=0o022), connections), FetchLimits())
    engine.opened(Hello(0, "", "job", (config,)))
    transfer = Transfer.of(files[0], config)
    engine.announce("job", "reader", [transfer])
    assert access.has_looked.wait(PATIENCE_S)
    access.credentials.put("job.0", Credentials({}, time.time() + 3600))
    engine.announce("job", "reader", [transfer])
    access.may_end.set()
    wait_until("it has come", lambda: is_on_disk(transfer))
    assert (tmp_path / "cache" / "0").read_bytes() == content("0", 1000)
