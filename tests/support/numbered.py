"""A dataset whose samples hold their own number, and content that follows from it."""

from __future__ import annotations

import random
from typing import Any

from streaming import MDSWriter

COLUMNS = {"id": "int", "blob": "bytes", "name": "str"}


def numbered(number: int) -> dict[str, Any]:
    """The sample of this number, which also seeds the length and bytes of its blob."""
    rng = random.Random(number)
    return {"id": number, "blob": rng.randbytes(rng.randrange(20, 120)), "name": f"sample {number}"}


def write_numbered(out: Any, n_samples: int, *, first: int = 0, **options: Any) -> None:
    """Write samples `first` to `first + n_samples - 1`, 30 to 60 to a shard."""
    options = {"size_limit": 4096, "hashes": ["xxh64"], **options}
    with MDSWriter(out=out, columns=COLUMNS, **options) as writer:
        for number in range(first, first + n_samples):
            writer.write(numbered(number))


def checked_id(sample: dict[str, Any]) -> int:
    """The sample's number. Raises AssertionError if any of its bytes is wrong."""
    if sample != numbered(sample["id"]):
        raise AssertionError(f"sample {sample['id']} arrived damaged: {sample}")
    return int(sample["id"])


def checked_ids(samples: list[dict[str, Any]]) -> list[int]:
    """The numbers of a batch. A collate function that checks every byte."""
    return [checked_id(sample) for sample in samples]
