"""From 10⁴ to 10¹⁰ samples: processor time and memory to the first batch, beside an order held as an array.

    python benchmarks/order_curves.py

Each in a fresh process, in the middle of an epoch, for rank 3 of 8. The shards are those that such a data set would
have: 1,000 rows each up to 10⁸ samples, then 10,000. The array is what others build: all sample ids, shuffled by
numpy, and this rank's share of it; up to 10⁸ samples, since beyond that it does not fit beside anything else.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

from streaming.order import Catalog, EpochOrder, EpochPlan, OrderSpec, Topology, WorkerReader

SIZES = (10**4, 10**5, 10**6, 10**7, 10**8, 10**9, 10**10)
LARGEST_ARRAY = 10**8
BATCH_SIZE, N_RANKS, RANK = 32, 8, 3


def memory_mb() -> float:
    """The most memory that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def lazily(n_samples: int) -> None:
    """The first batch from the middle of an epoch, by evaluating the windows that it needs."""
    n_shards = n_samples // (1_000 if n_samples <= 10**8 else 10_000)
    catalog = Catalog(np.full(n_shards, n_samples // n_shards), np.array([n_shards]))
    order = EpochOrder(OrderSpec(shuffle=True), catalog, 1)
    plan = EpochPlan(order, Topology(N_RANKS, N_RANKS), BATCH_SIZE, start=n_samples // 2)
    WorkerReader(plan, RANK, 0, 1).next_ids(1)


def as_array(n_samples: int) -> None:
    """The same from an epoch that is made whole."""
    ids = np.random.default_rng(1).permutation(n_samples)
    first = n_samples // 2 + RANK * BATCH_SIZE
    ids[first : first + BATCH_SIZE].copy()


def measured(how: str, n_samples: int) -> tuple[float, float]:
    """Seconds and MB of one way in a fresh process; the best of three, as other work on the machine only ever adds."""
    runs = [
        json.loads(subprocess.check_output([sys.executable, __file__, how, str(n_samples)], text=True))
        for _ in range(3)
    ]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def main() -> None:
    """Print a markdown table."""
    print("| samples | first batch | memory | as an array | memory |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for n_samples in SIZES:
        lazy_s, lazy_mb = measured("lazily", n_samples)
        row = f"| 10^{len(str(n_samples)) - 1} | {lazy_s:.3f} s | {lazy_mb:.0f} MB |"
        if n_samples <= LARGEST_ARRAY:
            array_s, array_mb = measured("as_array", n_samples)
            row += f" {array_s:.3f} s | {array_mb:.0f} MB |"
        else:
            row += f" (not held) | {8 * n_samples / 1e6:,.0f} MB |"
        print(row, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        base_mb, begun = memory_mb(), time.process_time()
        (lazily if sys.argv[1] == "lazily" else as_array)(int(sys.argv[2]))
        print(json.dumps([time.process_time() - begun, memory_mb() - base_mb]))
