"""The parts of a fetcher, put together: the same in a process of its own and in the process that asks."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from streaming.cache.files import Temporaries
from streaming.fetch.decide.ranges import RangeRules
from streaming.fetch.decide.transfers import FetchLimits
from streaming.fetch.transfer.counters import Counters
from streaming.fetch.transfer.deadline_pool import BulkGate, DeadlinePool
from streaming.fetch.transfer.engine import Engine
from streaming.fetch.transfer.ranges import Ranges
from streaming.fetch.transfer.stores import StoreAccess
from streaming.fetch.transfer.whole_file import Claim, TransferContext, claim_nothing
from streaming.storage.connect import Stores
from streaming.storage.store import Store
from streaming.storage.url import Location

_N_PART_CONNECTIONS: Final = 15
"""Connections for the parts of one large file, beside that of its own thread."""


@dataclass(frozen=True, slots=True)
class Services:
    """What requests are turned into calls of, and the rules by which it decides."""

    engine: Engine
    ranges: Ranges
    access: StoreAccess
    counters: Counters
    limits: FetchLimits
    rules: RangeRules


def make_services(temporaries: Temporaries, claim: Claim = claim_nothing) -> Services:
    """Make a fetcher's parts. `claim` keeps other fetchers of this machine from fetching the same file meanwhile."""
    stores, counters, limits, rules = Stores(), Counters(), FetchLimits(), RangeRules()

    def open_store(remote: Location, timeout_s: float, options: Mapping[str, Any], for_uploads: bool) -> Store:
        if for_uploads:
            return stores.open_for_uploads(remote, options)
        return stores.open(remote, timeout_s, options)

    context = TransferContext(
        access=StoreAccess(open_store),
        temporaries=temporaries,
        connections=ThreadPoolExecutor(_N_PART_CONNECTIONS, thread_name_prefix="part"),
        claim=claim,
        bulk_gate=BulkGate(rules.yields_s),
    )
    engine = Engine(context, counters, limits)
    ranges = Ranges(engine, context, counters, DeadlinePool(rules.at_once, "range"), rules)
    return Services(engine, ranges, context.access, counters, limits, rules)
