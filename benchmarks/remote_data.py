"""A data set in a store of our own, for the benchmarks that read over the network. No benchmark itself.

A few real MDS shards are written, and each stands in the store under many names: a thousand shards of 64 MB need no
64 GB of disk, and what is served comes from the page cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from streaming import MDSWriter
from streaming.testing import FaultProxy, LoggedRequest, ProxyLimits

BUCKET: Final = "bkt"
N_REAL: Final = 3
_QUIET_S: Final = 60.0


@dataclass(frozen=True)
class RemoteData:
    """What stands in the store under `remote`. Every shard has so many rows, and every blob so many bytes."""

    remote: str
    n_shards: int
    rows: int
    shard_bytes: int
    sample_bytes: int

    def id_at(self, number: int) -> int:
        """What the column `id` of this sample holds."""
        return number // self.rows % N_REAL * self.rows + number % self.rows

    @property
    def paths(self) -> list[str]:
        """Of the shards, as the store counts them."""
        return [f"/{BUCKET}/data/{_basename(number)}" for number in range(self.n_shards)]


def serve(proxy: FaultProxy, folder: Path, *, n_shards: int, shard_bytes: int, sample_bytes: int) -> RemoteData:
    """Write shards of about `shard_bytes` into `folder`, and put them into the store until there are `n_shards`."""
    rng = np.random.default_rng(0)
    with MDSWriter(out=str(folder), columns={"id": "int", "blob": "bytes"}, size_limit=shard_bytes) as writer:
        for number in range((N_REAL + 1) * shard_bytes // sample_bytes):
            writer.write({"id": number, "blob": rng.bytes(sample_bytes)})
    real = json.loads((folder / "index.json").read_text())["shards"][:N_REAL]
    if len({entry["samples"] for entry in real}) != 1:
        raise SystemExit("the shards are not equally long; let shard_bytes hold more samples")
    shards = [
        {**entry, "raw_data": {**entry["raw_data"], "basename": _basename(number)}}
        for number, entry in ((number, real[number % N_REAL]) for number in range(n_shards))
    ]
    index = folder / "served.json"
    index.write_text(json.dumps({"version": 2, "shards": shards}))
    files = {f"data/{_basename(number)}": str(folder / _basename(number % N_REAL)) for number in range(n_shards)}
    proxy.add_files(BUCKET, {**files, "data/index.json": str(index)})
    first = real[0]
    return RemoteData(f"s3://{BUCKET}/data", n_shards, first["samples"], first["raw_data"]["bytes"], sample_bytes)


class Scale(Protocol):
    """How large the data set of a benchmark is."""

    @property
    def n_shards(self) -> int: ...
    @property
    def shard_bytes(self) -> int: ...
    @property
    def sample_bytes(self) -> int: ...


@contextlib.contextmanager
def served(scale: Scale, limits: ProxyLimits) -> Iterator[tuple[FaultProxy, RemoteData]]:
    """A store of our own with these limits, and a data set in it."""
    with tempfile.TemporaryDirectory(prefix="shards-") as folder, FaultProxy.started() as proxy:
        found = serve(
            proxy,
            Path(folder),
            n_shards=scale.n_shards,
            shard_bytes=scale.shard_bytes,
            sample_bytes=scale.sample_bytes,
        )
        proxy.set_limits(limits)
        yield proxy, found


def scaled_parser(title: str | None) -> argparse.ArgumentParser:
    """The arguments of every benchmark over a network; `title` is the docstring of its module."""
    parser = argparse.ArgumentParser(description=(title or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    return parser


def wait_until_quiet(proxy: FaultProxy) -> None:
    """Until everyone has left the store: what one run still fetches must not slow the next."""
    end_s = time.monotonic() + _QUIET_S
    while proxy.counts().open_connections:
        if time.monotonic() > end_s:
            raise SystemExit(f"somebody has not left the store within {_QUIET_S:.0f} s")
        time.sleep(0.05)


def round_trips(log: Sequence[LoggedRequest]) -> int:
    """The longest row of requests of which each began when the one before had ended: what latency must be paid for."""
    n_trips, free_s = 0, 0.0
    for request in sorted((each for each in log if each.ended_s is not None), key=lambda each: each.ended_s or 0.0):
        if request.began_s >= free_s:
            n_trips, free_s = n_trips + 1, request.ended_s or 0.0
    return n_trips


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and between which values it lies."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def _basename(number: int) -> str:
    return f"shard.{number:05}.mds"
