"""The parts of a fetcher, put together: the same in a process of its own and in the process that asks."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from streaming.cache.files import Temporaries
from streaming.fetch.attempts import Lanes
from streaming.fetch.credentials import Wallet
from streaming.fetch.engine import Engine
from streaming.fetch.policy import Limits
from streaming.fetch.protocol import StreamConfig
from streaming.fetch.range_policy import RangeLimits
from streaming.fetch.ranges import Ranges
from streaming.fetch.tally import Tally
from streaming.fetch.transfer import Claim, Means, claim_nothing
from streaming.fetch.turns import Turns
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store

_N_PART_CONNECTIONS: Final = 15  # of one large file, beside its own thread's


@dataclass(frozen=True, slots=True)
class Services:
    """What requests are turned into calls of."""

    engine: Engine
    ranges: Ranges
    stores: Stores
    means: Means
    tally: Tally


def make_services(temporaries: Temporaries, claim: Claim = claim_nothing) -> Services:
    """A fetcher's parts. `claim` keeps other fetchers of this machine from fetching the same file at the same time."""
    stores, tally, wallet = Stores(), Tally(), Wallet()

    def open_store(config: StreamConfig) -> Store:
        options = json.loads(config.options)
        if config.purse:
            options |= wallet.get(config.purse)
        return stores.open(config.remote, config.download_timeout, options)

    means = Means(
        open_store=open_store,
        wallet=wallet,
        temporaries=temporaries,
        lanes=Lanes(),
        connections=ThreadPoolExecutor(_N_PART_CONNECTIONS, thread_name_prefix="part"),
        rng=random.Random(),
        claim=claim,
    )
    engine = Engine(means, tally, Limits())
    range_limits = RangeLimits()
    ranges = Ranges(engine, means, tally, Turns(range_limits.at_once, "range"), range_limits)
    return Services(engine, ranges, stores, means, tally)
