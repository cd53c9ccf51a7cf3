"""What a measured process does. No benchmark itself: `readers.py` runs it, with either library's interpreter.

So it imports `streaming`, torch and nothing else that one of them may lack. It says lines of JSON, and waits for a line
before each part that is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def say(**facts: Any) -> None:
    """Tell the process that measures."""
    print(json.dumps(facts), flush=True)


def wait() -> None:
    """Until it says so."""
    sys.stdin.readline()


def first_batch(remote: str, local: str, batch_size: int, n_workers: int) -> None:
    """From construction to the first batch."""
    from streaming import StreamingDataLoader, StreamingDataset

    say()
    wait()
    begun_s = time.monotonic()
    dataset = StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=batch_size)
    batches = iter(StreamingDataLoader(dataset, batch_size=batch_size, num_workers=n_workers))
    batch = next(batches)
    say(seconds=time.monotonic() - begun_s, n_samples=len(batch["id"]))
    wait()


def by_number(remote: str, local: str, numbers: list[int] | int) -> None:
    """Some samples, or one, of a dataset that was just made."""
    from streaming import StreamingDataset

    dataset = StreamingDataset(remote=remote, local=local, batch_size=1)
    say()
    wait()
    begun_s = time.monotonic()
    found = dataset[numbers]
    seconds = time.monotonic() - begun_s
    samples = found if isinstance(found, list) else [found]
    say(seconds=seconds, ids=[int(sample["id"]) for sample in samples], n_bytes=sum(len(s["blob"]) for s in samples))
    wait()


def working_set(remote: str, local: str, batch_size: int, options: dict[str, Any]) -> None:
    """What this dataset says that it needs in a cache."""
    from streaming import StreamingDataset

    dataset: Any = StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=batch_size, **options)
    say(cache_bytes=dataset.explain().cache_bytes)
    dataset.close()


def epoch(
    remote: str, local: str, batch_size: int, n_workers: int, options: dict[str, Any], meeting_place: str
) -> None:
    """This rank's share of an epoch. All ranks take each step together, as where gradients are exchanged."""
    import torch.distributed as dist

    from streaming import StreamingDataLoader, StreamingDataset

    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting_place}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    dataset: Any = StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=batch_size, **options)
    # What a worker hands to its rank is not the library's to make faster, so it is a number here.
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=n_workers, collate_fn=blob_bytes)
    say()
    wait()
    begun_s = time.monotonic()
    n_bytes = 0
    for n_of_batch in loader:
        n_bytes += n_of_batch
        dist.barrier()
    say(begun_s=begun_s, ended_s=time.monotonic(), n_bytes=n_bytes)
    wait()


def blob_bytes(samples: list[dict[str, Any]]) -> int:
    """A batch as the number of its bytes."""
    return sum(len(sample["blob"]) for sample in samples)


def bare_copy(bucket: str, keys: list[str], local: str, n_connections: int) -> None:
    """The store's client by itself: every object into a file, so many at once."""
    import obstore
    from obstore.store import S3Store

    options: Any = {"allow_http": True, "pool_max_idle_per_host": str(n_connections)}
    store = S3Store(bucket, endpoint=os.environ["S3_ENDPOINT_URL"], client_options=options)
    os.makedirs(local)

    def copy(key: str) -> int:
        n_bytes = 0
        with open(os.path.join(local, os.path.basename(key)), "wb") as file:
            for chunk in obstore.get(store, key).stream(min_chunk_size=1 << 20):
                n_bytes += file.write(chunk)
        return n_bytes

    say()
    wait()
    begun_s = time.monotonic()
    with ThreadPoolExecutor(n_connections) as pool:
        n_bytes = sum(pool.map(copy, keys))
    say(begun_s=begun_s, ended_s=time.monotonic(), n_bytes=n_bytes)
    wait()


TASKS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (
        first_batch,
        by_number,
        working_set,
        epoch,
        bare_copy,
    )
}

if __name__ == "__main__":
    TASKS[sys.argv[1]](**json.loads(sys.argv[2]))
