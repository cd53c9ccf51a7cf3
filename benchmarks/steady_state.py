"""An epoch over a fast network against the store's bare client: `python -m benchmarks.steady_state [--quick]`.

128 raw shards of 64 MB with samples of 100 KB lie in a store on this machine that gives out 200 MB/s (`--rate`; 0: as
fast as it can, but then store, fetcher and readers share the machine's cores, and the bare client has no readers). 4
ranks with 4 workers each read one shuffled epoch into one cache that they share, and take each step together, as ranks
do that train; what workers hand to them are numbers, so that PyTorch's hand-over is not measured. The bare client
copies the same shards into files, from one process, over as many connections as our fetcher had. Runs alternate;
medians are shown, with the least and the most. MB/s are bytes of samples over the time from the first rank's `iter()`
to the last rank's end.

The store counts the bytes of each shard that it gave out, over those of the shard: in all, and for the worst shard.
One row is the same epoch in a cache of 1.25 times the working set that `dataset.explain()` states; so that this is less
than all shards, the shuffle is given 4 canonical nodes and a block of four shards, in every row.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from dataclasses import dataclass
from typing import Any

from benchmarks.readers import Reader, reading
from benchmarks.remote_data import BUCKET, RemoteData, scaled_parser, served, spread, wait_until_quiet
from streaming.testing import FaultProxy, ProxyCounts, ProxyLimits

BATCH_SIZE = 32
CACHE_SHARE = 1.25
BLOCK_SHARDS = 4
MOST_EXTRA = 1.02
"""Bytes of a shard that are wanted at most, over its size."""


@dataclass(frozen=True)
class Scale:
    """How much of it."""

    n_shards: int
    shard_bytes: int
    sample_bytes: int
    n_ranks: int
    n_workers: int
    n_rounds: int


FULL = Scale(128, 1 << 26, 100_000, 4, 4, 3)
QUICK = Scale(24, 1 << 21, 20_000, 2, 2, 2)


@dataclass(frozen=True)
class Epoch:
    """One run."""

    megabytes_per_s: float
    counts: ProxyCounts

    def shares(self, found: RemoteData) -> tuple[float, float]:
        """Bytes given out over those of the shards: of all, and of the worst."""
        each = [self.counts.bytes_by_path.get(path, 0) / found.shard_bytes for path in found.paths]
        return sum(each) / len(each), max(each)


def epoch(proxy: FaultProxy, found: RemoteData, scale: Scale, cache_limit: int | None) -> Epoch:
    """All ranks at once."""
    wait_until_quiet(proxy)
    with tempfile.TemporaryDirectory(prefix="steady-", ignore_cleanup_errors=True) as local:
        task = {**_dataset(found, local, cache_limit), "n_workers": scale.n_workers, "meeting_place": f"{local}/ranks"}
        with contextlib.ExitStack() as stack:
            ranks = [
                stack.enter_context(reading("epoch", task, {**proxy.variables(), **_launched(rank, scale.n_ranks)}))
                for rank in range(scale.n_ranks)
            ]
            for rank in ranks:
                rank.hear()
            speed, counts = _measured(proxy, ranks)
        wait_until_quiet(proxy)
    return Epoch(speed, counts)


def limit_of(proxy: FaultProxy, found: RemoteData, scale: Scale) -> int:
    """The cache that one row has."""
    variables = {**proxy.variables(), **_launched(0, scale.n_ranks)}
    with (
        tempfile.TemporaryDirectory(prefix="explained-", ignore_cleanup_errors=True) as local,
        reading("working_set", _dataset(found, local, None), variables) as reader,
    ):
        return math.ceil(CACHE_SHARE * int(reader.hear()["cache_bytes"]))


def _dataset(found: RemoteData, local: str, cache_limit: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"num_canonical_nodes": 4, "shuffle_block_size": BLOCK_SHARDS * found.rows}
    if cache_limit is not None:
        options["cache_limit"] = cache_limit
    return {"remote": found.remote, "local": f"{local}/cache", "batch_size": BATCH_SIZE, "options": options}


def bare_copy(proxy: FaultProxy, found: RemoteData, n_connections: int) -> Epoch:
    """The client alone."""
    wait_until_quiet(proxy)
    with tempfile.TemporaryDirectory(prefix="bare-") as local:
        keys = [path.removeprefix(f"/{BUCKET}/") for path in found.paths]
        task = {"bucket": BUCKET, "keys": keys, "local": f"{local}/files", "n_connections": n_connections}
        with reading("bare_copy", task, proxy.variables()) as reader:
            reader.hear()
            return Epoch(*_measured(proxy, [reader]))


def _measured(proxy: FaultProxy, readers: list[Reader]) -> tuple[float, ProxyCounts]:
    proxy.reset_counts()
    for reader in readers:
        reader.go()
    said = [reader.hear() for reader in readers]
    counts = proxy.counts()
    seconds = max(one["ended_s"] for one in said) - min(one["begun_s"] for one in said)
    return sum(one["n_bytes"] for one in said) / 1e6 / seconds, counts


def _launched(rank: int, n_ranks: int) -> dict[str, str]:
    """What torchrun would set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(n_ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(n_ranks),
    }


def row(name: str, runs: list[Epoch], found: RemoteData, bare: list[Epoch]) -> str:
    """A line of the table."""
    speeds = [run.megabytes_per_s for run in runs]
    ratio = statistics.median(speeds) / statistics.median(run.megabytes_per_s for run in bare)
    shares, worst = zip(*(run.shares(found) for run in runs))
    return (
        f"| {name} | {spread(speeds, 0)} | {ratio:.2f} | {spread(shares, 3)} | {max(worst):.3f} | "
        f"{max(run.counts.peak_connections for run in runs)} |"
    )


def main() -> None:
    """Print one table."""
    parser = scaled_parser(__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="MB/s of the store; 0: no limit")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    limits = ProxyLimits(bytes_per_s=arguments.rate * 1e6 if arguments.rate else None)
    with served(scale, limits) as (proxy, found):
        ours: list[Epoch] = []
        bare: list[Epoch] = []
        limited: list[Epoch] = []
        limit = limit_of(proxy, found, scale)
        for _ in range(arguments.rounds or scale.n_rounds):
            ours.append(epoch(proxy, found, scale, None))
            limited.append(epoch(proxy, found, scale, limit))
            bare.append(bare_copy(proxy, found, max(run.counts.peak_connections for run in ours)))
    print(
        f"{found.n_shards} shards of {found.shard_bytes / 1e6:.1f} MB, samples of {found.sample_bytes / 1e3:.0f} KB, "
        f"{scale.n_ranks} ranks × {scale.n_workers} workers; wanted: at most {MOST_EXTRA} × the bytes of each shard\n"
    )
    print("| reader | MB/s | of the bare client | bytes / shard bytes | worst shard | connections |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    print(row("ours", ours, found, bare))
    print(row(f"ours, in a cache of {limit / 1e6:.0f} MB", limited, found, bare))
    print(row("obstore, one process", bare, found, bare))


if __name__ == "__main__":
    main()
