"""How many shards a node has to have at hand at once, and what it costs if it has room for fewer. Closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streaming.order.nodes.plan import EpochPlan
from streaming.order.report.node_reads import NodeReads
from streaming.order.report.quality import stretches


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Of the node that reads most canonical nodes."""

    in_use: float
    """Shards of which it is in the middle, on average over the epoch."""
    shards: float
    """Shards for which it needs room so that it fetches none twice in an epoch."""
    batches: float
    """Batches from the first that needs a shard to the last, on average."""
    visits: float
    """How many of them need it."""

    def fetches_per_shard(self, room: float) -> float:
        """How often a shard is fetched in an epoch if there is room for so many, and the best are kept.

        The best to keep are those that are needed again soonest. In a fluid picture, where a batch needs each shard in
        use with probability p, those are kept that are needed again within m batches, which takes room for a part
        1 - (1 + mp)(1 - p)^m of the shards in use; the other (1 - p)^m of the visits fetch anew.
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
    """What an epoch from its first sample on needs at hand on a node."""
    order = plan.order
    reads = NodeReads(plan) if reads is None else reads
    most_needed = max((n for n, _ in reads.needs(np.ones(order.catalog.n_shards))), default=0.0)
    busiest = reads.lanes_of(reads.busiest())
    in_use = float(stretches(order, busiest).sum())
    # Design: lanes × (1 + 2 block/z'). The lanes' own shards are in use anyway; twice what the block adds to them.
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
