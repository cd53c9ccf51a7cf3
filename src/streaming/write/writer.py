"""The common part of all writers: their arguments, and their life from the first sample to the index."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from streaming.errors import OptionError, WriteError, WriterCopyError
from streaming.formats import compression as compressions
from streaming.formats import hashing
from streaming.formats.names import INDEX_NAME
from streaming.units import parse_bytes
from streaming.write.builder import ShardBuilder
from streaming.write.output_location import Out, make_folder, parse_out
from streaming.write.pipeline import ShardPipeline, ShardPlan
from streaming.write.temporary_folder import TemporaryFolder
from streaming.write.uploader import Uploader, open_uploader

DEFAULT_SIZE_LIMIT: Final = 1 << 26
MAX_SIZE_LIMIT: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The arguments that every kind of writer takes, checked and with defaults filled in."""

    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    keep_local: bool
    progress_bar: bool
    max_workers: int | None
    retry: int
    exist_ok: bool
    storage_options: Mapping[str, Any] | None


def checked_options(
    *,
    keep_local: bool,
    compression: str | None,
    hashes: Iterable[str] | None,
    size_limit: int | float | str | None,
    extra: Mapping[str, Any],
) -> WriterOptions:
    """Check the arguments of a writer; `extra` holds its further keyword arguments. Raises OptionError."""
    known = {"progress_bar": False, "max_workers": None, "retry": 2, "exist_ok": False, "storage_options": None}
    unknown = sorted(set(extra) - set(known))
    if unknown:
        raise OptionError(f"Invalid Writer argument: {unknown[0]}; known are {', '.join(known)}")
    given = {**known, **extra}
    if isinstance(hashes, str):
        raise OptionError(f"hashes must be a list of names, got {hashes!r}; use [{hashes!r}]")
    for name, least in (("retry", 1), ("max_workers", 1)):
        value = given[name]
        if not (value is None and name == "max_workers") and (not isinstance(value, int) or value < least):
            raise OptionError(f"{name} must be {least} or more, got {value!r}")
    return WriterOptions(
        compression=compressions.check_name(compression),
        hashes=hashing.check_names(hashes),
        size_limit=_checked_limit(size_limit),
        keep_local=bool(keep_local),
        progress_bar=bool(given["progress_bar"]),
        max_workers=given["max_workers"],
        retry=given["retry"],
        exist_ok=bool(given["exist_ok"]),
        storage_options=given["storage_options"],
    )


def _checked_limit(size_limit: int | float | str | None) -> int | None:
    """The limit in bytes, None for no limit, which 0 and '' mean too. Raises OptionError."""
    if not size_limit:
        return None
    n_bytes = parse_bytes(size_limit)
    if not 0 <= n_bytes <= MAX_SIZE_LIMIT:
        raise OptionError(
            f"`size_limit` must be less than {MAX_SIZE_LIMIT + 1} bytes, since offsets are 32 bits, and 0 or more, "
            f"got {n_bytes}"
        )
    return n_bytes or None


class Writer:
    """The base of all writers: samples in, a dataset out.

    A shard appears under its name when it is complete, and `index.json` last, so readers see the whole dataset or none.
    Use it as a context manager: leaving the block by an exception writes no index.

    Any number of threads may call `write`: each sample is stored once, in some order. They encode at the same time, so
    a registered encoding must allow that. A writer belongs to the process that made it: a forked child cannot write
    with it and leaves its files alone, and it cannot be copied or pickled.
    """

    def __init__(
        self, *, encode: Callable[[Mapping[str, Any]], bytes], config: dict[str, Any], out: Out, options: WriterOptions
    ) -> None:
        target = parse_out(out)
        if options.storage_options and target.remote is None:
            raise OptionError("storage_options say how a remote is asked, and out names none")
        uploader = None
        if target.remote is not None:
            uploader = open_uploader(target.remote, retry=options.retry, storage_options=options.storage_options)
        try:
            if uploader is not None:
                uploader.check()
            self._temporary: TemporaryFolder | None = None
            if target.local is None:
                self._temporary = TemporaryFolder()
                self._folder = self._temporary.path
            else:
                make_folder(target.local, exist_ok=options.exist_ok)
                self._folder = target.local
        except BaseException:
            if uploader is not None:
                uploader.close()
            raise
        self._uploader: Uploader | None = uploader
        self._keep_local = options.keep_local or target.remote is None
        self._encode = encode
        self._builder = ShardBuilder(config, options.size_limit)
        plan = ShardPlan(
            folder=self._folder,
            config=config,
            compression=options.compression,
            hashes=options.hashes,
            keep_local=self._keep_local,
            progress_bar=options.progress_bar,
        )
        self._pipeline = ShardPipeline(plan, uploader, max_workers=options.max_workers)
        self._ended: str | None = None
        self._lock = threading.Lock()  # guards the builder, the pipeline's list of shards, and how the writer ended
        self._owner = os.getpid()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample. A sample that cannot be encoded raises an error and leaves the writer as it was.

        Raises WriteError if the writer has ended, an earlier shard could not be written or uploaded, or this is a
        forked child of the process that made the writer.
        """
        self._check_process()
        self._check_takes_samples()  # before the work of encoding
        record = self._encode(sample)
        with self._lock:
            self._check_takes_samples()  # again: another thread may have finished meanwhile
            finished = self._builder.add(record)
            if finished is not None:
                self._pipeline.submit(finished)

    def finish(self) -> None:
        """Write the last shard and the index. Raises WriteError, and writes no index, if anything failed.

        Doing it twice is harmless. A forked child is refused with WriteError.
        """
        self._check_process()
        with self._lock:
            if self._ended == "is finished":
                return
            if self._ended is not None:
                raise WriteError(f"this writer {self._ended}; no index is written")
            self._ended = "has failed"
            try:
                last = self._builder.finish()
                if last is not None:
                    self._pipeline.submit(last)
                self._pipeline.finish()
                self._ended = "is finished"
            finally:
                self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        elif os.getpid() == self._owner:  # a forked child that leaves the block must not end what its parent writes
            with self._lock:
                if self._ended is None:
                    self._ended = "was left by an exception"
                    self._close()

    def __reduce__(self) -> NoReturn:
        raise WriterCopyError(
            "a writer cannot be copied or pickled: give each process a writer with an out of its own below one root, "
            "then call streaming.write.merge.merge_index on the root"
        )

    def _check_process(self) -> None:
        if os.getpid() != self._owner:
            raise WriteError(
                f"this writer belongs to process {self._owner}, and this is a forked child of it: give each process a "
                "writer with an out of its own below one root, then call streaming.write.merge.merge_index on the root"
            )

    def _check_takes_samples(self) -> None:
        if self._ended is not None:
            raise WriteError(f"this writer {self._ended}; samples can no longer be added")
        self._pipeline.raise_error()

    def _close(self) -> None:
        """Stop the threads and remove local files that were not meant to stay."""
        if self._ended != "is finished":
            self._pipeline.abort()
        if self._uploader is not None:
            self._uploader.close()
        if self._temporary is not None:
            self._temporary.remove()
        elif not self._keep_local and self._ended == "is finished":
            os.unlink(os.path.join(self._folder, INDEX_NAME))
            with suppress(OSError):  # others may have put something beside it
                os.rmdir(self._folder)
