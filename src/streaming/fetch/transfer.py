"""Bringing one file from its store to its place in the cache.

The bytes go through once: store → hash → (compressed copy, if it is kept) → decompression → temporary → final name. A
body that was cut goes on where it stopped, by range and of the same version; that is no new attempt while it brings
bytes. What does not have the size of the index, or not its hash, is never placed. A large file that is waited for while
little else moves comes in parts, over several connections (`parts`).
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, cast

from streaming.cache.files import Temporaries, Temporary, is_present
from streaming.cache.inventory import claim, mark_of, origin_of
from streaming.errors import (
    CacheTakenError,
    CredentialsExpiredError,
    CredentialsWantedError,
    FormatError,
    ObjectMissingError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.fetch.attempts import Lane, Lanes, attempted
from streaming.fetch.courtesy import Courtesy
from streaming.fetch.credentials import Wallet
from streaming.fetch.parts import Parts
from streaming.fetch.protocol import StreamConfig
from streaming.fetch.task import AbandonedError, FileTask, Moved
from streaming.formats.compression import decompress_stream
from streaming.formats.hashing import hasher
from streaming.formats.names import INDEX_NAME
from streaming.storage.local import FolderStore
from streaming.storage.store import Part, Store
from streaming.storage.url import Folder, parse_remote

_RESUME_BYTES: Final = 1 << 18  # a connection that brings less before it breaks has failed


Sized = Callable[[int], None]
"""Told of how many bytes a file is that nobody knew before. Raises NoRoomError if it can have no room."""


def _ignore(_: int) -> None:
    """For whom no limit is kept."""


Claim = Callable[[FileTask], contextlib.AbstractContextManager[object]]
"""A block in which no other process of this machine fetches a file."""


def claim_nothing(_: FileTask) -> contextlib.AbstractContextManager[object]:
    """For the only fetcher of a machine."""
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class Means:
    """What transfers work with."""

    open_store: Callable[[StreamConfig], Store]
    wallet: Wallet
    temporaries: Temporaries
    lanes: Lanes
    connections: Executor  # for the parts of large files
    rng: random.Random
    claim: Claim = claim_nothing
    courtesy: Courtesy = field(default_factory=Courtesy)

    @contextlib.contextmanager
    def store(self, config: StreamConfig) -> Iterator[Store]:
        """The store of a stream, for one attempt. CredentialsWantedError: the user's function must be called first."""
        try:
            yield self.open_store(config)
        except CredentialsExpiredError as error:
            if not config.purse:
                raise
            self.wallet.drop(config.purse)
            raise CredentialsWantedError(config.purse) from error


def fetch_file(task: FileTask, means: Means, moved: Moved, *, n_parts: int = 1, sized: Sized = _ignore) -> None:
    """Place the file of `task`, from what lies in the cache if that will do, else from its store.

    Raises the kinds of `streaming.errors` that say what the store, the disk or the bytes did.
    """
    if not task.is_done():
        with means.claim(task):
            _fetch(task, means, moved, n_parts, sized)


def _fetch(task: FileTask, means: Means, moved: Moved, n_parts: int, sized: Sized) -> None:
    if task.is_done():  # by who held the claim before us
        return
    if _is_source(task):
        raise _absent_in_source(task)
    need = task.need
    if need.zip_name is not None and _unpacked_here(task, need.zip_name, means.temporaries):
        return
    if need.zip_name is None and n_parts > 1:
        fetch_in_parts(task, means, moved, n_parts)
        return
    lane = means.lanes.lane(task.remote)

    def attempt(_: int) -> None:
        moved.n_attempts += 1
        with means.store(task.config) as store:
            _receive(task, _Source(task, store, lane, moved, means.courtesy, sized), means.temporaries)

    attempted(task.shown, task.patience, lane, attempt, rng=means.rng)


def fetch_in_parts(task: FileTask, means: Means, moved: Moved, n_parts: int) -> None:
    """Place an uncompressed file over up to `n_parts` connections at once; what has come once is not fetched again."""
    lane = means.lanes.lane(task.remote)
    parts = Parts(task.need.n_bytes, task.shown)
    with means.temporaries.begin(task.local, task.name, n_bytes=task.need.n_bytes) as raw:

        def attempt(_: int) -> None:
            moved.n_attempts += 1
            has_turn = iter([True])  # the attempt itself; its first part, which is fetched alone, takes it

            def fetch(begin: int, end: int, version: str | None) -> Part:
                sent_s = None if next(has_turn, False) else lane.enter(task.patience.throttled_s)
                with means.store(task.config) as store:
                    part = store.get_range(task.name, begin, end, version=version)
                if sent_s is not None:
                    lane.answered(sent_s)
                check_size(task, part.facts.n_bytes, task.need.n_bytes, task.name)
                raw.write_at(begin, part.data)
                moved.n_bytes += len(part.data)
                return part

            parts.fetch_missing(fetch, means.connections, n_parts)
            try:
                for _chunk in _checked(task, raw.read_back()):
                    pass
            except TransferDamagedError:
                parts.forget()
                raise

        attempted(task.shown, task.patience, lane, attempt, rng=means.rng)
        raw.place()


@dataclass(frozen=True, slots=True)
class _Source:
    """Where one attempt takes the bytes from, and who is told of them."""

    task: FileTask
    store: Store
    lane: Lane
    moved: Moved
    courtesy: Courtesy
    sized: Sized


def _receive(task: FileTask, source: _Source, temporaries: Temporaries) -> None:
    """One attempt over the network."""
    need, config = task.need, task.config
    if need.zip_name is None:
        with temporaries.begin(task.local, need.name, n_bytes=need.n_bytes) as raw:
            for chunk in _checked(task, _body(source, need.name, need.n_bytes)):
                raw.write(chunk)
            if need.name == INDEX_NAME or not config.has_index:
                _claim_folder(task)
            if not config.has_index:
                raw.mark(mark_of(origin_of(task.remote, task.shown_remote), need.name))
            raw.place()
        return
    with contextlib.ExitStack() as stack:
        chunks = _checked(task, _body(source, need.zip_name, need.zip_bytes))
        if config.keep_zip:
            kept = stack.enter_context(temporaries.begin(task.local, need.zip_name, n_bytes=need.zip_bytes))
            chunks = _copied(chunks, kept)
        else:
            kept = None
        _unpack(task, chunks, temporaries)
        if kept is not None:
            kept.place()


def _claim_folder(task: FileTask) -> None:
    """The cache folder says from now on of which remote it is a copy. Raises CacheTakenError if it is of another."""
    ours = origin_of(task.remote, task.shown_remote)
    holder = claim(task.local, ours)
    if holder.digest != ours.digest:
        raise CacheTakenError(f"{task.local} holds a copy of {holder.remote}, not of {task.shown_remote}")


def _unpacked_here(task: FileTask, zip_name: str, temporaries: Temporaries) -> bool:
    """Make the raw file from a compressed one that lies in the cache (another job's, or the predecessor's)."""
    if not is_present(os.path.join(task.local, zip_name), task.need.zip_bytes):
        return False
    try:
        _unpack(task, _checked(task, FolderStore(task.local).get(zip_name).chunks), temporaries)
    except (TransferDamagedError, ObjectMissingError):  # cut, flipped or just deleted: as if it were not there
        return False
    return True


def _unpack(task: FileTask, chunks: Iterator[bytes | memoryview], temporaries: Temporaries) -> None:
    need = task.need
    if need.compression is None:
        raise StorageError(
            f"{task.shown_remote}/{need.zip_name}: the index names a compressed file, but no compression"
        )
    pieces = cast(Iterator[bytes], chunks)  # any buffer will do
    try:
        with temporaries.begin(task.local, need.name, n_bytes=need.n_bytes) as raw:
            for chunk in decompress_stream(need.compression, pieces, n_bytes=need.n_bytes):
                raw.write(chunk)
            for _ in chunks:  # the hash covers what a decompressor leaves unread
                pass
            if need.n_bytes not in (-1, raw.n_bytes):
                raise TransferDamagedError(
                    f"{task.shown_remote}/{need.zip_name} decompresses to {raw.n_bytes} bytes; "
                    f"the index states {need.n_bytes}"
                )
            raw.place()
    except FormatError as error:
        raise TransferDamagedError(f"{task.shown_remote}/{need.zip_name} does not decompress: {error}") from error


def _body(source: _Source, name: str, n_bytes: int) -> Iterator[bytes | memoryview]:
    """The bytes of an object, resumed where a connection broke; as many as the index states, or an error."""
    task, store, lane, moved = source.task, source.store, source.lane, source.moved
    content = store.get(name)
    lane.answered(time.monotonic())  # a long transfer is a sign of life from its beginning on
    facts, n_got, n_resumed_at, given_s = content.facts, 0, 0, 0.0
    check_size(task, facts.n_bytes, n_bytes, name)
    if n_bytes < 0:
        source.sized(facts.n_bytes)
    shown = f"{task.shown_remote}/{name}"
    while True:
        try:
            for chunk in content.chunks:
                n_got += len(chunk)
                moved.n_bytes += len(chunk)
                lane.gave()
                yield chunk
                given_s = source.courtesy.give_way(given_s)
                if not moved.is_wanted:
                    raise AbandonedError(f"{shown}: nobody wants it any more")
            if n_got < facts.n_bytes:
                raise TransferDamagedError(f"{shown}: {n_got} bytes came of {facts.n_bytes}: the transfer was cut")
            break
        except (StoreBusyError, StoreUnreachableError, TransferDamagedError):
            if n_got - n_resumed_at < _RESUME_BYTES or n_got >= facts.n_bytes:
                raise
        n_resumed_at = n_got
        lane.enter(task.patience.throttled_s)
        content = store.get(name, offset=n_got, version=facts.version)
    if n_got != facts.n_bytes:
        raise TransferDamagedError(f"{shown}: {n_got} bytes came; the store promised {facts.n_bytes}")


def check_size(task: FileTask, found: int, expected: int, name: str) -> None:
    """Raise TransferDamagedError if the object `name` has another size than the index states (-1: it states none)."""
    if expected not in (-1, found):
        raise TransferDamagedError(
            f"{task.shown_remote}/{name} has {found} bytes in the store; the index states {expected}; were "
            "shards and index written by one run?"
        )


def _checked(task: FileTask, chunks: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes; at their end an error if their hash is not the one of the index."""
    need = task.need
    if need.hash_name is None or need.hash_hex is None:
        yield from chunks
        return
    digest = hasher(need.hash_name)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != need.hash_hex:
        raise TransferDamagedError(
            f"{task.shown_remote}/{need.zip_name or need.name}: {need.hash_name} is {digest.hexdigest()}; the index "
            f"states {need.hash_hex}: bytes were changed on the way or in the store"
        )


def _copied(chunks: Iterator[bytes | memoryview], copy: Temporary) -> Iterator[bytes | memoryview]:
    for chunk in chunks:
        copy.write(chunk)
        yield chunk


def _is_source(task: FileTask) -> bool:
    """Whether the cache folder is the source itself, which nobody may write."""
    location = parse_remote(task.remote)
    return isinstance(location, Folder) and os.path.realpath(location.path) == os.path.realpath(task.local)


def _absent_in_source(task: FileTask) -> StorageError:
    try:
        n_bytes = os.stat(task.path).st_size
    except OSError:
        return ObjectMissingError(f"{task.path} does not exist, and {task.local} is the source itself")
    return TransferDamagedError(
        f"{task.path} has {n_bytes} bytes and the index states {task.need.n_bytes}; {task.local} is the source itself, "
        "so the file must be mended there"
    )
