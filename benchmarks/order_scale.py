"""The order at scale: 10⁹ samples in 10⁵ shards, default settings; one stream once, or three by fractional shares.

    python benchmarks/order_scale.py [--quick]

First a cold start, each in a fresh process: the order is made and rank 3 of 8 gets its first batch of 32, at the start
and in the middle of the epoch; the bar is 0.5 s and 200 MB over the process without the order. Then the cost of each
sample that a worker reads for itself, once it is under way; the bar is 2 µs where there are no more nodes than
canonical nodes. Processor time is counted there, and the fastest of several stretches, as other work on the machine
only ever adds.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

from streaming.order import (
    Catalog,
    EpochOrder,
    EpochPlan,
    OrderSpec,
    StreamWeight,
    Topology,
    WorkerReader,
    first_uses,
    resolve_draws,
)

N_SHARDS = 100_000
ROWS_PER_SHARD = 10_000
BATCH_SIZE = 32
ONCE = "one stream"
ALGORITHMS = ("py1e", "py1br", "py1b", "py1s", "py2s", "naive")
METHODS = ("random", "stratified", "per_stream", "device_per_stream")
"""Of three streams, of which parts of passes are drawn: proportions 0.4, 0.35, 0.25; sizes 0.5, 0.3, 0.2."""
MIDDLE = N_SHARDS * ROWS_PER_SHARD // 2
WORLDS = ((8, 8), (512, 8))


def memory_mb() -> float:
    """The most memory that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def new_order(algorithm: str, method: str, topology: Topology) -> EpochOrder:
    """The order of epoch 1, from nothing but numbers of shards and rows."""
    spec = OrderSpec(shuffle=True, shuffle_algo=algorithm, batching_method="random" if method == ONCE else method)
    sizes = np.full(N_SHARDS, ROWS_PER_SHARD)
    if method == ONCE:
        return EpochOrder(spec, Catalog(sizes, np.array([N_SHARDS])), 1)
    catalog = Catalog(sizes, np.array([N_SHARDS // 2, N_SHARDS * 3 // 10, N_SHARDS // 5]))
    weights = [StreamWeight(proportion=proportion) for proportion in (0.4, 0.35, 0.25)]
    draws = resolve_draws(catalog, weights, catalog.n_samples, spec.seed)
    units = {"per_stream": BATCH_SIZE * topology.n_groups, "device_per_stream": BATCH_SIZE}
    return EpochOrder(spec, catalog, 1, draws, units.get(method))


def whole_units(start: int, order: EpochOrder) -> int:
    """The last place up to `start` where reading can begin."""
    return start // (order.unit or 1) * (order.unit or 1)


def cold_start(algorithm: str, method: str, start: int) -> dict[str, float]:
    """Seconds and MB to the first batch, in this process, which has done nothing yet."""
    base_mb, begun = memory_mb(), time.perf_counter()
    order = new_order(algorithm, method, Topology(8, 8))
    made = time.perf_counter()
    plan = EpochPlan(order, Topology(8, 8), BATCH_SIZE, whole_units(start, order))
    WorkerReader(plan, 3, 0, 1).next_ids(1)
    return {"made_s": made - begun, "first_s": time.perf_counter() - begun, "mb": memory_mb() - base_mb}


def steady_us(order: EpochOrder, topology: Topology, n_workers: int, n_stretches: int) -> float:
    """Processor time in µs for each own sample of worker 0 of rank 3: the fastest of several stretches.

    Windows are evaluated for 80,000 ranks of a canonical node at a time, and workers plan up to 24,576 samples ahead; a
    stretch holds a whole number of both, or nearly.
    """
    plan = EpochPlan(order, topology, BATCH_SIZE, whole_units(MIDDLE // 5, order))
    reader = WorkerReader(plan, 3, 0, n_workers)
    n_canonical_nodes = order.n_canonical_nodes // topology.n_nodes
    n_samples = max(2 * n_canonical_nodes, 4) * 80_000 // topology.ranks_per_node // n_workers
    n_samples = -(-n_samples // 24_576) * 24_576
    reader.next_ids(n_samples)
    stretches = []
    for _ in range(n_stretches):
        begun, n_read = time.process_time(), 0
        while n_read < n_samples:
            n_read += len(reader.next_ids(1024)[0])
        stretches.append((time.process_time() - begun) / n_read * 1e6)
    return min(stretches)


def read_ahead_ms(order: EpochOrder) -> tuple[float, float]:
    """Milliseconds for the next 1,024 shards of a node that holds all canonical nodes: first and repeated call."""
    costs = []
    for position in (MIDDLE, MIDDLE + 10_000):
        begun = time.perf_counter()
        first_uses(order, Topology(8, 8), 0, position, 1024)
        costs.append((time.perf_counter() - begun) * 1e3)
    return costs[0], costs[1]


def main() -> None:
    """Print the tables."""
    if len(sys.argv) == 5 and sys.argv[1] == "--cold":
        print(json.dumps(cold_start(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return
    cases = [(algorithm, ONCE) for algorithm in ALGORITHMS]
    cases += [(algorithm, "random") for algorithm in ALGORITHMS]
    cases += [("py1e", method) for method in METHODS[1:]]
    print(f"{'algorithm':9} {'streams':17} {'cursor':>12} {'order made':>11} {'first batch':>12} {'memory':>9}")
    for algorithm, method in cases:
        for start in (0, MIDDLE):
            command = [sys.executable, __file__, "--cold", algorithm, method, str(start)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            cost = json.loads(answer.stdout)
            print(
                f"{algorithm:9} {method:17} {start:12,} {cost['made_s']:9.3f} s {cost['first_s']:10.3f} s "
                f"{cost['mb']:6.0f} MB",
                flush=True,
            )
    print(f"\n{'algorithm':9} {'streams':17} {'ranks':>6} {'nodes':>6} {'workers':>8} {'own sample':>11}")
    n_stretches = 1 if "--quick" in sys.argv else 4
    for algorithm, method in cases:
        for n_ranks, ranks_per_node in WORLDS:
            topology = Topology(n_ranks, ranks_per_node)
            order = new_order(algorithm, method, topology)
            for n_workers in (1,) if "--quick" in sys.argv else (1, 4, 8):
                cost_us = steady_us(order, topology, n_workers, n_stretches)
                row = f"{algorithm:9} {method:17} {n_ranks:6} {topology.n_nodes:6} {n_workers:8}"
                print(f"{row} {cost_us:8.2f} µs", flush=True)
        first_ms, next_ms = read_ahead_ms(new_order(algorithm, method, Topology(8, 8)))
        print(f"{algorithm:9} {method:17} next 1,024 shards: {first_ms:.0f} ms at first, then {next_ms:.1f} ms")


if __name__ == "__main__":
    main()
