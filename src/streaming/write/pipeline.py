"""Brings finished shards to their place: hashes, compresses, writes and uploads a few shards at a time."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from streaming.errors import WriteError
from streaming.formats import compression
from streaming.formats.hashing import digest
from streaming.formats.index import INDEX_NAME, dump_index, file_entry
from streaming.placement import write_file
from streaming.write.builder import FinishedShard
from streaming.write.uploader import Uploader

# Each shard in the pipeline holds its raw and its compressed bytes in memory.
_MOST_WORKERS: Final = 8


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What to do with every shard. `config` holds the keys that all shard objects of the index have in common."""

    folder: str
    config: dict[str, Any]
    compression: str | None
    hashes: tuple[str, ...]
    keep_local: bool
    progress_bar: bool


class ShardPipeline:
    """Owns a small pool of threads. It holds at most one shard for each thread; then `submit` waits.

    The first error stops it: later shards are not touched, and `finish` raises the error and writes no index.
    """

    def __init__(self, plan: ShardPlan, uploader: Uploader | None, *, max_workers: int | None) -> None:
        self._plan = plan
        self._uploader = uploader
        n_workers = max_workers or min(_MOST_WORKERS, (os.cpu_count() or 1) + 1)
        self._pool = ThreadPoolExecutor(n_workers, thread_name_prefix="streaming-write")
        self._room = threading.Semaphore(n_workers)
        self._entries: list[Future[dict[str, Any]]] = []
        self._error: BaseException | None = None

    def raise_error(self) -> None:
        """Raise WriteError if a shard has failed."""
        if self._error is not None:
            raise WriteError(
                f"writing the dataset failed: {self._error}; no index is written, start again into an empty place"
            ) from self._error

    def submit(self, shard: FinishedShard) -> None:
        """Hand over a shard; waits while the pipeline is full. Raises WriteError if a shard has failed."""
        self._room.acquire()
        try:
            self.raise_error()
            future = self._pool.submit(self._process, shard)
        except BaseException:
            self._room.release()
            raise
        self._entries.append(future)

    def finish(self) -> None:
        """Wait for all shards, then write and upload the index. Closes the pool in any case. Raises WriteError."""
        self._pool.shutdown(wait=True)
        self.raise_error()
        path = os.path.join(self._plan.folder, INDEX_NAME)
        try:
            write_file(path, dump_index(future.result() for future in self._entries))
            if self._uploader is not None:
                self._uploader.put(path, INDEX_NAME)
        except Exception as error:
            self._error = error
            self.raise_error()

    def abort(self) -> None:
        """End the uploads and wait for the shards that have been started, drop the others, and write no index."""
        self._error = self._error or WriteError("the writer was left by an exception")
        if self._uploader is not None:
            self._uploader.close()  # else an upload that is tried again would be waited for, for minutes
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _process(self, shard: FinishedShard) -> dict[str, Any]:
        try:
            self.raise_error()
            return self._placed(shard)
        except BaseException as error:
            if self._error is None:
                self._error = error
                if self._uploader is not None:
                    self._uploader.close()  # the dataset is lost: other uploads need not be tried again
            raise
        finally:
            self._room.release()

    def _placed(self, shard: FinishedShard) -> dict[str, Any]:
        """Bring the file of a shard to its place. Returns the object that stands for the shard in the index."""
        plan = self._plan
        name, data = shard.basename, shard.data
        entry = {
            **plan.config,
            "samples": shard.n_samples,
            "raw_data": file_entry(name, len(data), {algorithm: digest(algorithm, data) for algorithm in plan.hashes}),
            "zip_data": None,
        }
        if plan.compression is not None:
            name = f"{name}.{compression.extension(plan.compression)}"
            data = compression.compress(plan.compression, data)
            entry["zip_data"] = file_entry(
                name, len(data), {algorithm: digest(algorithm, data) for algorithm in plan.hashes}
            )
        path = os.path.join(plan.folder, name)
        write_file(path, data)
        if self._uploader is not None:
            self._uploader.put(path, name)
            if not plan.keep_local:
                os.unlink(path)
        if plan.progress_bar:
            sys.stderr.write(f"{name}: {shard.n_samples} samples, {len(data)} bytes\n")
        return entry
