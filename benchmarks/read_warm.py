"""Samples a second from warm local data, in one process: this library, a bare loop over mapped shards, a peer.

    python benchmarks/read_warm.py [--peer PYTHON]

The bare loop finds each record by its shard's offsets, in the same shuffled order, and decodes it by hand: the least
that any reader must do. All are run in turn, several rounds, each in a fresh process; medians and ratios are shown.
`--peer` names an interpreter that has mosaicml-streaming 0.13; the library under test must not be installed there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

N_ROUNDS = 5
N_EPOCHS = 2

KINDS: dict[str, tuple[int, dict[str, str]]] = {
    "tokens: 2,048 uint16": (20_000, {"tokens": "ndarray:uint16:2048"}),
    "record: int, float, 1 KiB of bytes": (20_000, {"id": "int", "x": "float32", "blob": "bytes"}),
}


def write(folder: str, n_samples: int, columns: dict[str, str]) -> None:
    """A data set of one kind in shards of 4 MB."""
    import numpy as np

    from streaming import MDSWriter

    with MDSWriter(out=folder, columns=columns, size_limit=1 << 22) as writer:
        for number in range(n_samples):
            rng = np.random.default_rng(number)
            sample: dict[str, Any] = {"id": number, "x": number / 2, "blob": rng.bytes(1024)}
            if "tokens" in columns:
                sample = {"tokens": rng.integers(0, 50_000, 2048, dtype=np.uint16)}
            writer.write(sample)


def rate(epoch: Callable[[], Any]) -> float:
    """Samples a second over whole epochs, after one that warms up."""
    sum(1 for _ in epoch())
    begun = time.perf_counter()
    n_samples = sum(sum(1 for _ in epoch()) for _ in range(N_EPOCHS))
    return n_samples / (time.perf_counter() - begun)


def streaming_epochs(folder: str) -> Callable[[], Any]:
    """Either library's dataset, by the interface that both have."""
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=32, num_canonical_nodes=1)
    return lambda: iter(dataset)


def bare_epochs(folder: str) -> Callable[[], Any]:
    """Mapped shards, offsets, and a decoder written by hand for each of the two kinds."""
    import numpy as np

    shards = json.loads(Path(folder, "index.json").read_text())["shards"]
    maps = [np.memmap(Path(folder, shard["raw_data"]["basename"]), np.uint8, "r") for shard in shards]
    offsets = [mapped[4 : 8 + 4 * shard["samples"]].view("<u4").tolist() for mapped, shard in zip(maps, shards)]
    views = [mapped.data for mapped in maps]
    places = [(number, row) for number, shard in enumerate(shards) for row in range(shard["samples"])]
    order = [places[i] for i in np.random.default_rng(0).permutation(len(places))]
    is_tokens = shards[0]["column_names"] == ["tokens"]

    def tokens() -> Any:
        for number, row in order:
            begin, end = offsets[number][row], offsets[number][row + 1]
            yield {"tokens": np.frombuffer(views[number][begin:end], np.uint16).copy()}

    def records() -> Any:
        for number, row in order:
            record = bytes(views[number][offsets[number][row] : offsets[number][row + 1]])
            n_blob = int.from_bytes(record[:4], "little")
            yield {
                "blob": record[4 : 4 + n_blob],
                "id": int.from_bytes(record[4 + n_blob : 12 + n_blob], "little", signed=True),
                "x": np.frombuffer(record, np.float32, 1, 12 + n_blob)[0],
            }

    return tokens if is_tokens else records


def measured(python: str, reader: str, folder: str) -> float:
    """The rate of one reader in a fresh process."""
    run = subprocess.run(
        [python, __file__, "--reader", reader, "--folder", folder], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(run.stderr)
    return float(run.stdout.split()[-1])


def main() -> None:
    """Run all readers in turn and print medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer")
    parser.add_argument("--reader", choices=("streaming", "bare"))
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    if arguments.reader:
        epochs = streaming_epochs if arguments.reader == "streaming" else bare_epochs
        print(rate(epochs(arguments.folder)))
        return
    readers = {"ours": (sys.executable, "streaming"), "bare loop": (sys.executable, "bare")}
    if arguments.peer:
        readers["mosaicml-streaming"] = (arguments.peer, "streaming")
    with tempfile.TemporaryDirectory() as root:
        for number, (kind, (n_samples, columns)) in enumerate(KINDS.items()):
            folder = f"{root}/{number}"
            write(folder, n_samples, columns)
            rates: dict[str, list[float]] = {name: [] for name in readers}
            for _ in range(N_ROUNDS):
                for name, (python, reader) in readers.items():
                    rates[name].append(measured(python, reader, folder))
            medians = {name: statistics.median(found) for name, found in rates.items()}
            print(f"{kind}:")
            for name, median in medians.items():
                print(f"  {name:20} {median:10,.0f} samples/s   ours is {medians['ours'] / median:5.2f} x")


if __name__ == "__main__":
    main()
