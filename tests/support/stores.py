"""A FaultProxy as the store of a test: filling it, its counts by key, and faults that many tests use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from streaming.testing import Fault, FaultProxy
from support.fetcher_world import content

BUCKET = "bkt"
SILENT = Fault(stall_s=1e6)  # no answer until the rules are replaced, or the test ends
UNAVAILABLE = Fault(status=503, code="InternalError")  # the usual code of 503, SlowDown, asks for a pause
STOPPED = Fault(stall_s=1e6, stall_after=0)  # only the head of the answer


def contents(sizes: Mapping[str, int]) -> dict[str, bytes]:
    """`content` of each name."""
    return {name: content(name, n_bytes) for name, n_bytes in sizes.items()}


def put(store: FaultProxy, objects: Mapping[str, bytes]) -> None:
    """Add objects, or replace them."""
    store.add_bytes(BUCKET, objects)


def fill(store: FaultProxy, prefix: str, n: int, n_bytes: int) -> list[bytes]:
    """Add objects `prefix/0` and so on; return their contents, which differ."""
    made = contents({f"{prefix}/{i}": n_bytes for i in range(n)})
    put(store, made)
    return list(made.values())


def put_folder(store: FaultProxy, folder: Path, prefix: str) -> str:
    """Add copies of a folder's files; return their URL."""
    paths = sorted(folder.iterdir(), key=lambda path: path.name == "index.json")  # the index last, as writers do
    put(store, {f"{prefix}/{path.name}": path.read_bytes() for path in paths if path.is_file()})
    return f"s3://{BUCKET}/{prefix}"


def gets(store: FaultProxy) -> Counter[str]:
    """Requests by key."""
    counted = store.counts().requests_by_path.items()
    return Counter({path.removeprefix(f"/{BUCKET}/"): n for path, n in counted})


def ranges(store: FaultProxy) -> list[tuple[str, int]]:
    """Key and first byte of each request with a range, in order."""
    return [(path.removeprefix(f"/{BUCKET}/"), begin) for path, begin, _ in store.ranges()]


def whole_gets(store: FaultProxy) -> Counter[str]:
    """Requests without a range by key, except those for indexes."""
    entries = [entry for entry in store.log() if entry.span is None and not entry.path.endswith("/index.json")]
    return Counter(entry.path.removeprefix(f"/{BUCKET}/") for entry in entries)
