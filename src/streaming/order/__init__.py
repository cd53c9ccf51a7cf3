"""Which sample comes when. Pure: numpy and arithmetic; no clock, environment, file, thread or global random state.

`resolve_draws` computes how many samples each stream gives. `EpochOrder(spec, catalog, epoch, draws)` is the order of
an epoch as a function of position. `Schedule` makes the orders and plans of a run from its settings, `EpochPlan`
computes which positions a rank gets, and `WorkerReader` reads them for one worker. `save_state` and `load_state` turn a
`Cursor` into JSON and back. README.md in this folder is the way in.
"""

from __future__ import annotations

from streaming.order.catalog import Catalog
from streaming.order.checkpoint import Cursor, fingerprint, load_state, save_state, spec_of_state
from streaming.order.epoch import EpochOrder, OrderReader, rows_drawn
from streaming.order.explanation import Explanation, explain, node_warning
from streaming.order.nodes.plan import EpochPlan, Schedule, WorkerReader
from streaming.order.nodes.shard_uses import first_uses, sparsely_read
from streaming.order.nodes.topology import Topology
from streaming.order.report.working_set import WorkingSet, working_set
from streaming.order.spec import OrderSpec
from streaming.order.weights import StreamWeight, resolve_draws

__all__ = [
    "Catalog",
    "Cursor",
    "EpochOrder",
    "EpochPlan",
    "Explanation",
    "OrderReader",
    "OrderSpec",
    "Schedule",
    "StreamWeight",
    "Topology",
    "WorkerReader",
    "WorkingSet",
    "explain",
    "fingerprint",
    "first_uses",
    "load_state",
    "node_warning",
    "resolve_draws",
    "rows_drawn",
    "save_state",
    "sparsely_read",
    "spec_of_state",
    "working_set",
]
