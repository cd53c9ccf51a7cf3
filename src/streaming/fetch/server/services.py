"""The parts of a fetcher, put together: the same in a process of its own and in the process that asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from streaming.cache.files import Temporaries
from streaming.fetch.decide.ranges import RangeRules
from streaming.fetch.decide.transfers import FetchLimits
from streaming.fetch.transfer.deadline_pool import BulkGate, DeadlinePool
from streaming.fetch.transfer.engine import Engine
from streaming.fetch.transfer.ranges import Ranges
from streaming.fetch.transfer.stores import StoreAccess
from streaming.fetch.transfer.whole_file import Claim, TransferContext, claim_nothing
from streaming.storage.connect import Stores

_N_PART_CONNECTIONS: Final = 15
"""Connections for the parts of one large file, beside that of its own thread."""


@dataclass(frozen=True, slots=True)
class Services:
    """What requests are turned into calls of, and the rules by which it decides."""

    engine: Engine
    ranges: Ranges
    access: StoreAccess
    limits: FetchLimits
    rules: RangeRules


def make_services(temporaries: Temporaries, claim: Claim = claim_nothing) -> Services:
    """Make a fetcher's parts. `claim` keeps other fetchers of this machine from fetching the same file meanwhile."""
    limits, rules = FetchLimits(), RangeRules()
    context = TransferContext(
        access=StoreAccess(Stores()),
        temporaries=temporaries,
        connections=ThreadPoolExecutor(_N_PART_CONNECTIONS, thread_name_prefix="part"),
        claim=claim,
        bulk_gate=BulkGate(rules.yields_s),
    )
    engine = Engine(context, limits)
    ranges = Ranges(engine, context, DeadlinePool(rules.at_once, "range"), rules)
    return Services(engine, ranges, context.access, limits, rules)
