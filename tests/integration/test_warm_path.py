"""Reading a warm sample costs no lock, no `open`, no `stat` and no message."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streaming import StreamingDataset
from support.numbered import write_numbered

# The calls of decoders. None enters the kernel but `pread`, by which a source is read.
HARMLESS = {"decode", "from_bytes", "get", "iter", "len", "next", "pread", "sum", "tobytes", "unpack_from"}


def _calls_per_sample(samples: Any, n_samples: int) -> Counter[str]:
    """Count the C functions called while `n_samples` samples are read, also by Python functions on the way."""
    calls: Counter[str] = Counter()

    def note(_: Any, event: str, argument: Any) -> None:
        if event == "c_call":
            calls[argument.__name__] += 1

    sys.setprofile(note)
    try:
        for _ in range(n_samples):
            next(samples)
    finally:
        sys.setprofile(None)
    del calls["setprofile"]
    return calls


@pytest.mark.parametrize("where", ["cached", "source"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_warm_sample_calls_nothing_but_its_decoder(tmp_path: Path, where: str, shuffle: bool) -> None:
    """Between two plans of the order, each sample costs the same few harmless calls."""
    source = tmp_path / "source"
    write_numbered(str(source), 3000, size_limit=1 << 16)
    options = {"remote": str(source), "local": str(tmp_path / "cache")} if where == "cached" else {"local": str(source)}
    dataset = StreamingDataset(shuffle=shuffle, batch_size=64, **options)  # type: ignore[arg-type]
    for _ in dataset:  # all fetched, opened and mapped
        pass
    samples = iter(dataset)
    for _ in range(1024):
        next(samples)
    # 8 x 64 samples are planned at a time in halves, so 200 in a row meet at most one plan.
    readings = [_calls_per_sample(samples, 50) for _ in range(8)]
    calls = min(readings, key=lambda reading: sum(reading.values()))
    assert set(calls) <= HARMLESS, calls
    assert sum(calls.values()) <= 50 * 14, calls


def test_the_warm_loop_opens_nothing(tmp_path: Path) -> None:
    """A whole warm epoch opens no file, according to the interpreter's audit events."""
    source = tmp_path / "source"
    write_numbered(str(source), 2000)
    dataset = StreamingDataset(remote=str(source), local=str(tmp_path / "cache"), shuffle=True)
    for _ in dataset:
        pass
    opened: list[Any] = []
    is_watching = True

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if is_watching and event in ("open", "socket.connect", "subprocess.Popen"):
            opened.append(details)

    sys.addaudithook(hook)  # a hook cannot be removed, hence the switch
    try:
        assert sum(1 for _ in dataset) == 2000
    finally:
        is_watching = False
    assert not opened
