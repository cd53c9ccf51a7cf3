"""A shuffle window that is not on disk yet: samples come by range if the store is faster than training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.testing import FaultProxy, ProxyLimits
from support.fetcher_world import content

N = 4000
BATCH = 8
N_BATCHES = 60
BUDGET = 4 * BATCH + N_BATCHES * BATCH // 100
"""Samples that come by range whichever of the two is faster."""


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """40 MB in 40 shards, all of one shuffle window; a store that takes 3 s to give them all."""
    with MDSWriter(
        out=str(tmp_path / "store" / "d"), columns={"id": "int", "blob": "bytes"}, size_limit=1 << 20
    ) as out:
        for number in range(N):
            out.write({"id": number, "blob": content(str(number), 10_000)})
    with FaultProxy.started(buckets={"bkt": str(tmp_path / "store")}) as proxy:
        proxy.set_limits(ProxyLimits(latency_s=0.02, bytes_per_s=13e6))
        for name, value in proxy.variables().items():
            monkeypatch.setenv(name, value)
        yield "s3://bkt/d"


def checked(samples: list[dict[str, Any]]) -> int:
    assert all(sample["blob"] == content(str(sample["id"]), 10_000) for sample in samples)
    return len(samples)


@pytest.mark.parametrize("is_slow", [True, False])
def test_training_that_is_slower_than_the_store_does_not_wait_for_shards(
    remote: str, tmp_path: Path, is_slow: bool
) -> None:
    """It consumes 1.6 of 13 MB/s, in steps of 50 ms. Training that takes all it can get is kept to the budget."""
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), shuffle=True, batch_size=BATCH)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=checked)
    for number, n_samples in enumerate(loader):
        assert n_samples == BATCH
        if number == N_BATCHES - 1:
            break
        if is_slow:
            time.sleep(0.05)
    by_range = dataset.stats().since_start.samples_by_range["ahead"]
    dataset.close()
    if is_slow:
        assert by_range > 2 * BUDGET
    else:
        assert by_range <= BUDGET + 4 * BATCH  # workers have read some batches that were not handed out
