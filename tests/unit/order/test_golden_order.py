"""Law 7: the order never changes, with any version of numpy, on any platform. A change needs a decision record."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology

GOLDEN = Path(__file__).parent / "golden_order.json"
CATALOG = Catalog(np.array([700, 1, 0, 333, 4096, 50, 50, 50, 1200]), np.array([3, 1, 5]))
SPECS = {
    "stored": OrderSpec(),
    "stored-4": OrderSpec(num_canonical_nodes=4),
    "py1e": OrderSpec(shuffle=True),
    "py1e-8-64": OrderSpec(seed=1, shuffle=True, num_canonical_nodes=8, shuffle_block_size=64),
    "py1e-3-full": OrderSpec(seed=2**63 - 1, shuffle=True, num_canonical_nodes=3, shuffle_block_size=10**6),
    "py1s": OrderSpec(shuffle=True, shuffle_algo="py1s", num_canonical_nodes=2),
    "naive": OrderSpec(shuffle=True, shuffle_algo="naive"),
    "py2s": OrderSpec(shuffle=True, shuffle_algo="py2s", num_canonical_nodes=4),
    "py1b": OrderSpec(shuffle=True, shuffle_algo="py1b", num_canonical_nodes=4, shuffle_block_size=300),
    "py1br": OrderSpec(shuffle=True, shuffle_algo="py1br", num_canonical_nodes=4, shuffle_block_size=300),
    "fixed-7": OrderSpec(shuffle=True, sampling_method="fixed", sampling_granularity=7),
    "stored-100": OrderSpec(sampling_granularity=100),
    "stratified": OrderSpec(shuffle=True, batching_method="stratified", num_canonical_nodes=4),
    "stratified-stored-4": OrderSpec(batching_method="stratified", num_canonical_nodes=4),
    "stratified-naive": OrderSpec(shuffle=True, shuffle_algo="naive", batching_method="stratified"),
    "exact": OrderSpec(shuffle=True, batching_method="stratified", batch_composition="exact", num_canonical_nodes=4),
    "exact-stored": OrderSpec(batching_method="stratified", batch_composition="exact"),
    "per_stream": OrderSpec(shuffle=True, batching_method="per_stream", num_canonical_nodes=3),
    "per_stream-stored": OrderSpec(batching_method="per_stream"),
    "device_per_stream": OrderSpec(shuffle=True, batching_method="device_per_stream", num_canonical_nodes=4),
    "device_per_stream-stored": OrderSpec(batching_method="device_per_stream"),
}
UNITS = {"per_stream": 42, "device_per_stream": 7}
EXACT_BATCH = 20
"""2 : 1 : 17 of the whole streams, 3 : 3 : 14 of the parts."""
PARTS = np.array([500, 700, 3000])


def digests(name: str) -> dict[str, str]:
    """Digest an epoch, one of two passes, one with partial passes, and what one rank gets."""
    is_exact = SPECS[name].batch_composition == "exact"
    unit = EXACT_BATCH if is_exact else UNITS.get(SPECS[name].batching_method)
    once = EpochOrder(SPECS[name], CATALOG, 0, unit=unit)
    twice = EpochOrder(SPECS[name], CATALOG, 5, CATALOG.samples_per_stream * 2, unit)
    part = EpochOrder(SPECS[name], CATALOG, 3, PARTS, unit)
    plan = EpochPlan(once, Topology(6, 3), EXACT_BATCH if is_exact else 7, start=100 // (unit or 1) * (unit or 1))
    rank = plan.source(plan.rank_batches(4, np.arange(plan.n_batches))[0])
    values = {"once": once.take(0, once.n_samples), "twice": twice.take(0, twice.n_samples), "rank": rank}
    values["part"] = part.take(0, part.n_samples)
    return {key: hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest() for key, ids in values.items()}


@pytest.mark.parametrize("name", SPECS)
def test_orders_equal_their_golden_digests(name: str) -> None:
    """Each sequence of samples has the digest that was recorded."""
    assert digests(name) == json.loads(GOLDEN.read_text())[name]


if __name__ == "__main__":
    sys.exit(GOLDEN.write_text(json.dumps({name: digests(name) for name in SPECS}, indent=2) + "\n") and 0)
