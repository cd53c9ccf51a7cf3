"""How many shards a node needs in its cache at once, and what a smaller cache costs. Closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streaming.order.nodes.plan import EpochPlan
from streaming.order.report.node_reads import NodeReads
from streaming.order.report.shards_in_use import fractions_in_use


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The shards that the busiest node (the one that reads most canonical nodes) needs at once."""

    in_use: float
    """Shards in use, from their first sample to their last, on average over the epoch."""
    shards: float
    """Shards for which the node needs room, so that it fetches none twice in an epoch."""
    batches: float
    """Batches from the first that needs a shard to the last, on average."""
    visits: float
    """Those of these batches that need the shard, on average."""

    def fetches_per_shard(self, room: float) -> float:
        """Return how often a shard is fetched in an epoch, given room for `room` shards and the best eviction.

        The best eviction keeps the shards that are needed again soonest. In a fluid model, where a batch needs each
        shard in use with probability p, it keeps those needed again within m batches. They take up a part 1 - (1 +
        mp)(1 - p)^m of the shards in use; the remaining (1 - p)^m of the visits fetch again.
        """
        share = min(1.0, room / max(1e-9, self.in_use))
        p = min(1 - 1e-6, self.visits / self.batches)
        if share >= 1.0 or self.visits <= 1:
            return 1.0
        low, high = 0.0, 64.0 / p
        for _ in range(64):
            m = (low + high) / 2
            low, high = (m, high) if 1 - (1 + m * p) * math.exp(m * math.log1p(-p)) < share else (low, m)
        return 1 + (self.visits - 1) * math.exp(low * math.log1p(-p))


def working_set(plan: EpochPlan, reads: NodeReads | None = None) -> WorkingSet:
    """Return the working set of an epoch that is read from its first sample on."""
    order = plan.order
    reads = NodeReads(plan) if reads is None else reads
    most_needed = max((n for n, _ in reads.needs(np.ones(order.catalog.n_shards))), default=0.0)
    busiest = reads.canonical_nodes_of(reads.busiest())
    in_use = float(fractions_in_use(order, busiest).sum())
    # Canonical nodes × (1 + 2 block/z'): one shard each is in use without a block, and twice what the block adds to it.
    shards = 2 * in_use - sum(map(len, busiest)) if order.uses_block else in_use
    n_samples = order.n_samples / max(1.0, plan.topology.n_nodes)
    rows = n_samples / max(1.0, most_needed)
    n_batches = max(1.0, plan.n_batches * in_use / max(1.0, most_needed))  # from a shard's first sample to its last
    return WorkingSet(
        in_use=in_use,
        shards=max(in_use, min(shards, most_needed)),
        batches=n_batches,
        visits=n_batches * (1 - (1 - 1 / n_batches) ** rows),
    )
