"""Time and memory to parse an index of 10⁵ shards: `python benchmarks/index_parse.py [number of shards]`."""

from __future__ import annotations

import pickle
import resource
import sys
import time

from streaming.formats.index import dump_index, file_entry, parse_index


def plain_index(n_shards: int) -> bytes:
    """An index of shards of three columns, not compressed, with one hash."""
    entries = [
        {
            "column_encodings": ["int", "str", "ndarray:uint8:2"],
            "column_names": ["a", "b", "c"],
            "column_sizes": [8, None, 2],
            "compression": None,
            "format": "mds",
            "hashes": ["sha1"],
            "raw_data": file_entry(f"shard.{i:05}.mds", 67_000_000 + i, {"sha1": f"{i:040x}"}),
            "samples": 1000 + i % 7,
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": None,
        }
        for i in range(n_shards)
    ]
    return dump_index(entries)


def made_index(n_shards: int) -> bytes:
    """An index of compressed, hashed shards of three columns."""
    entries = [
        {
            "column_encodings": ["int", "str", "ndarray:uint8:2"],
            "column_names": ["a", "b", "c"],
            "column_sizes": [8, None, 2],
            "compression": "zstd",
            "format": "mds",
            "hashes": ["sha1", "xxh64"],
            "raw_data": file_entry(f"shard.{i:05}.mds", 67_000_000 + i, {"sha1": f"{i:040x}", "xxh64": f"{i:016x}"}),
            "samples": 1000 + i % 7,
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": file_entry(
                f"shard.{i:05}.mds.zstd", 30_000_000 + i, {"sha1": f"{i:040x}", "xxh64": f"{i:016x}"}
            ),
        }
        for i in range(n_shards)
    ]
    return dump_index(entries)


def peak_mib() -> float:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print one line of figures for each of three runs, of a plain and of a compressed index."""
    n_shards = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for text in (plain_index(n_shards), made_index(n_shards)):
        print(f"{n_shards} shards, {len(text) / 1e6:.0f} MB of JSON")
        for _ in range(3):
            start, start_cpu = time.perf_counter(), time.process_time()
            index = parse_index(text, where="made index")
            wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
            print(f"parsed in {wall:.2f} s ({cpu:.2f} s CPU), pickled {len(pickle.dumps(index)) / 1e6:.1f} MB")
    print(f"peak memory with the text's making: {peak_mib():.0f} MiB")


if __name__ == "__main__":
    main()
