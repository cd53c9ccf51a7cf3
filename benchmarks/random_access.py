"""Samples by number from shards that are not here: `python -m benchmarks.random_access [--quick]`.

1,000 raw shards of 64 MB with samples of 100 KB lie in a store that takes 40 ms a request and gives 200 MB/s in all. A
fresh process with an empty cache makes a dataset; then `dataset[[…]]` asks for 1,000 samples, each of another shard, or
`dataset[i]` for one. Counted by the store: the bytes that it gave out, over those of the samples, and its requests;
round trips are the longest row of requests of which each began after the one before had ended. Runs of all readers
alternate; medians are shown, with the least and the most.

`--peer PYTHON` (or the variable PEER_PYTHON) names an interpreter with mosaicml-streaming 0.13, to be measured beside
us. It fetches whole shards, so it is asked for 50 samples only, which is 3 GB. `--quick` is a small version.
"""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass

from benchmarks.readers import reading, version_of_peer
from benchmarks.remote_data import RemoteData, round_trips, scaled_parser, served, spread, wait_until_quiet
from streaming.testing import FaultProxy, ProxyLimits

LIMITS = ProxyLimits(latency_s=0.04, bytes_per_s=200e6)


@dataclass(frozen=True)
class Scale:
    """How much of it."""

    n_shards: int
    shard_bytes: int
    sample_bytes: int
    n_samples: int
    n_peer_samples: int
    n_rounds: int


FULL = Scale(1000, 1 << 26, 100_000, 1000, 50, 3)
QUICK = Scale(60, 1 << 22, 100_000, 60, 10, 2)


@dataclass(frozen=True)
class Access:
    """One run."""

    seconds: float
    overhead: float  # bytes that came, over those of the samples
    n_requests: int
    n_round_trips: int


def access(proxy: FaultProxy, found: RemoteData, numbers: list[int] | int, peer: str | None) -> Access:
    """One request for samples, in a fresh process with a fresh cache."""
    wait_until_quiet(proxy)
    wanted = numbers if isinstance(numbers, list) else [numbers]
    with tempfile.TemporaryDirectory(prefix="random-", ignore_cleanup_errors=True) as local:
        task = {"remote": found.remote, "local": f"{local}/cache", "numbers": numbers}
        with reading("by_number", task, proxy.variables(), peer=peer) as reader:
            reader.hear()
            proxy.reset_counts()
            reader.go()
            said = reader.hear()
            counts, log = proxy.counts(), proxy.log()
            if said["ids"] != [found.id_at(number) for number in wanted]:
                raise SystemExit("other samples came than those that were asked for")
        wait_until_quiet(proxy)
    return Access(said["seconds"], counts.n_bytes / said["n_bytes"], counts.n_requests, round_trips(log))


def main() -> None:
    """Print one table."""
    parser = scaled_parser(__doc__)
    parser.add_argument("--peer", default=os.environ.get("PEER_PYTHON"))
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    with served(scale, LIMITS) as (proxy, found):
        rng = random.Random(0)
        shards = rng.sample(range(found.n_shards), scale.n_samples)
        numbers = [shard * found.rows + rng.randrange(found.rows) for shard in shards]
        cases: dict[tuple[str, str], tuple[list[int] | int, str | None]] = {
            ("ours", f"{len(numbers)} by a list"): (numbers, None),
            ("ours", "one"): (numbers[0], None),
        }
        if arguments.peer:
            name, few = f"mosaicml-streaming {version_of_peer(arguments.peer)}", numbers[: scale.n_peer_samples]
            cases[name, f"{len(few)} by a list"] = (few, arguments.peer)
            cases[name, "one"] = (numbers[0], arguments.peer)
            cases["ours", f"{len(few)} by a list"] = (few, None)
        runs: dict[tuple[str, str], list[Access]] = {case: [] for case in cases}
        for _ in range(arguments.rounds or scale.n_rounds):
            for case, (wanted, peer) in cases.items():
                runs[case].append(access(proxy, found, wanted, peer))
    print(
        f"{found.n_shards} shards of {found.shard_bytes / 1e6:.1f} MB, samples of {found.sample_bytes / 1e3:.0f} KB\n"
    )
    print("| reader | samples | s | bytes moved / bytes of samples | requests | round trips |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (name, what), each in runs.items():
        print(
            f"| {name} | {what} | {spread([one.seconds for one in each])} | {spread([one.overhead for one in each])} | "
            f"{spread([one.n_requests for one in each], 0)} | {spread([one.n_round_trips for one in each], 0)} |"
        )
    if not arguments.peer:
        print("\nno peer was measured: --peer names an interpreter that has it")


if __name__ == "__main__":
    main()
