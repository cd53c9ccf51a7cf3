"""From construction to the first shuffled batch, over a network: `python -m benchmarks.cold_start [--quick]`.

300 raw shards of 64 MB with samples of 100 KB lie in a store that takes 40 ms a request and gives 200 MB/s in all. A
fresh process with an empty cache makes a dataset and takes its first batch of 256 through `StreamingDataLoader`, with 0
and 4 workers. Counted by the store when the batch is there: the bytes that it had given out, and its requests. Imports
are not timed. Runs of all readers alternate; medians are shown, with the least and the most.

`--peer PYTHON` (or the variable PEER_PYTHON) names an interpreter with mosaicml-streaming 0.13, to be measured beside
us; it needs room for what it downloads, up to the whole 20 GB. Its workers are forked with the connection over which
the index came, and would read each other's answers from it; so the store closes that connection, for every reader.
`--quick` is a small version, to see that all of this works.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from dataclasses import dataclass

from benchmarks.readers import reading, version_of_peer
from benchmarks.remote_data import RemoteData, scaled_parser, served, spread, wait_until_quiet
from streaming.testing import Fault, FaultProxy, FaultRule, ProxyLimits

LIMITS = ProxyLimits(latency_s=0.04, bytes_per_s=200e6)
WORKERS = (0, 4)


@dataclass(frozen=True)
class Scale:
    """How much of it."""

    n_shards: int
    shard_bytes: int
    sample_bytes: int
    batch_size: int
    n_rounds: int


FULL = Scale(300, 1 << 26, 100_000, 256, 3)
QUICK = Scale(40, 1 << 21, 20_000, 64, 2)


@dataclass(frozen=True)
class Start:
    """One run."""

    seconds: float
    megabytes: float
    n_requests: int


def start(proxy: FaultProxy, found: RemoteData, batch_size: int, n_workers: int, peer: str | None) -> Start:
    """One cold start, in a fresh process with a fresh cache."""
    wait_until_quiet(proxy)
    with tempfile.TemporaryDirectory(prefix="cold-", ignore_cleanup_errors=True) as local:
        task = {"remote": found.remote, "local": f"{local}/cache", "batch_size": batch_size, "n_workers": n_workers}
        with reading("first_batch", task, proxy.variables(), peer=peer) as reader:
            reader.hear()
            proxy.reset_counts()
            reader.go()
            said = reader.hear()
            counts = proxy.counts()
            if said["n_samples"] != batch_size:
                raise SystemExit(f"the first batch has {said['n_samples']} samples instead of {batch_size}")
        wait_until_quiet(proxy)
    return Start(said["seconds"], counts.n_bytes / 1e6, counts.n_requests)


def main() -> None:
    """Print one table."""
    parser = scaled_parser(__doc__)
    parser.add_argument("--peer", default=os.environ.get("PEER_PYTHON"))
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    peers: dict[str, str | None] = {"ours": None}
    if arguments.peer:
        peers[f"mosaicml-streaming {version_of_peer(arguments.peer)}"] = arguments.peer
    with served(scale, LIMITS) as (proxy, found):
        proxy.set_rules(FaultRule(Fault(headers={"Connection": "close"}), path=r"index\.json$"))
        runs: dict[tuple[str, int], list[Start]] = {(name, n): [] for n in WORKERS for name in peers}
        for _ in range(arguments.rounds or scale.n_rounds):
            for (name, n_workers), starts in runs.items():
                starts.append(start(proxy, found, scale.batch_size, n_workers, peers[name]))
    print(
        f"{found.n_shards} shards of {found.shard_bytes / 1e6:.1f} MB, samples of {found.sample_bytes / 1e3:.0f} KB; "
        f"a first batch of {scale.batch_size} is {scale.batch_size * found.sample_bytes / 1e6:.1f} MB\n"
    )
    print("| reader | workers | first batch, s | ours is faster | MB moved by then | requests |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for (name, n_workers), starts in runs.items():
        ours = statistics.median(each.seconds for each in runs["ours", n_workers])
        ratio = statistics.median(each.seconds for each in starts) / ours
        print(
            f"| {name} | {n_workers} | {spread([each.seconds for each in starts])} | {ratio:.1f} × | "
            f"{spread([each.megabytes for each in starts], 1)} | {spread([each.n_requests for each in starts], 0)} |"
        )
    if len(peers) == 1:
        print("\nno peer was measured: --peer names an interpreter that has it")


if __name__ == "__main__":
    main()
