"""Brings one file from its store to its place in the cache.

The bytes go through once: store → hash → (compressed copy, if it is kept) → decompression → temporary → final name. A
file without the size or the hash that its index states is never placed. A large file that is waited for while little
else moves comes in parts, over several connections (`parts`).
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, cast

from streaming.cache.files import Temporaries, Temporary, is_present
from streaming.cache.origin import CopyOrigin, IndexVersion, claim, digest_of, mark_of, origin_of
from streaming.errors import (
    CacheTakenError,
    FetchError,
    FormatError,
    NoRoomError,
    ObjectMissingError,
    StorageError,
    StreamingError,
    TransferDamagedError,
)
from streaming.fetch.decide.ranges import RangeRules
from streaming.fetch.decide.transfers import Transfer
from streaming.fetch.transfer.deadline_pool import BulkGate
from streaming.fetch.transfer.log import log
from streaming.fetch.transfer.parts import Parts
from streaming.fetch.transfer.remote_watch import RemoteWatch
from streaming.fetch.transfer.stores import Retrying, StoreAccess, TransferProgress
from streaming.fetch.wire.protocol import FileRequest
from streaming.folder_identity import is_same_folder
from streaming.formats.compression import decompress_stream
from streaming.formats.hashing import hasher
from streaming.formats.index_outline import outline_of
from streaming.formats.names import INDEX_NAME
from streaming.storage.local import FolderStore
from streaming.storage.store import ObjectFacts, Part, Store
from streaming.storage.url import Folder

TakeRoom = Callable[[int], None]
"""Reserves space once the store has reported a size that was unknown. Raises NoRoomError if there is none."""


class AbandonedError(StorageError):
    """A transfer was given up because nobody wanted the file any more. It never reaches a client."""


class LimitError(NoRoomError):
    """The limit leaves no room for a file, whatever room the disk has. It reaches a client as NoRoomError."""


class RoomMaker(Protocol):
    """The owner of the space on disk."""

    def take_room(self, transfer: Transfer, n_bytes: int) -> None:
        """Reserve space once the store has reported the size. Raises LimitError."""
        ...

    def make_room(self, transfer: Transfer) -> bool:
        """Delete what may go, since the disk is full. Whether anything went."""
        ...


Claim = Callable[[Transfer], contextlib.AbstractContextManager[object]]
"""A block in which no other process of this machine fetches a file."""


def claim_nothing(_: Transfer) -> contextlib.AbstractContextManager[object]:
    """The claim of the only fetcher of a machine."""
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class TransferContext:
    """What all transfers share."""

    access: StoreAccess
    temporaries: Temporaries
    connections: Executor
    """Threads for the parts of large files."""
    claim: Claim = claim_nothing
    bulk_gate: BulkGate = field(default_factory=lambda: BulkGate(RangeRules().yields_s))
    watch: RemoteWatch = field(default_factory=RemoteWatch)


def move_file(
    transfer: Transfer, context: TransferContext, progress: TransferProgress, n_parts: int, room: RoomMaker
) -> StreamingError | None:
    """Place a file, making room on a full disk. Returns what kept it from coming; raises nothing."""
    take_room = partial(room.take_room, transfer)
    try:
        try:
            fetch_file(transfer, context, progress, n_parts=n_parts, take_room=take_room)
        except LimitError:
            raise
        except NoRoomError:
            if not room.make_room(transfer):
                raise
            fetch_file(transfer, context, progress, take_room=take_room)
    except AbandonedError as error:
        return error
    except LimitError as error:
        return NoRoomError(str(error))
    except StreamingError as error:
        log(f"not fetched: {type(error).__name__}: {error}")
        return error
    except Exception as error:
        log(traceback.format_exc())
        return FetchError(f"{transfer.shown}: the fetcher failed with {error!r}; its log has the details")
    _restore_index(transfer, context, progress)
    return None


def _restore_index(transfer: Transfer, context: TransferContext, progress: TransferProgress) -> None:
    """Put back what says of which remote the folder is a copy, where somebody has deleted that under a running job.

    Else other fetchers would take the files that come for the user's, which stay whatever the limits. Raises nothing.
    """
    try:
        with context.watch.restoring(transfer.key.local) as is_due:
            if is_due:
                fetch_file(Transfer.of(FileRequest(0, INDEX_NAME, -1), transfer.config), context, progress)
    except StreamingError as error:
        log(f"{INDEX_NAME} was deleted from {transfer.key.local} and is not put back: {error}")


def fetch_file(
    transfer: Transfer,
    context: TransferContext,
    progress: TransferProgress,
    *,
    n_parts: int = 1,
    take_room: TakeRoom = lambda n_bytes: None,
) -> None:
    """Place the file of `transfer`, from what lies in the cache if that will do, else from its store.

    Raises the kinds of `streaming.errors` that say what the store, the disk or the bytes did.
    """
    if is_on_disk(transfer):
        return
    with context.claim(transfer):
        if is_on_disk(transfer):  # placed by the process that held the claim before
            return
        if _is_source(transfer):
            raise _absent_in_source(transfer)
        zip_name = transfer.file.zip_name
        if zip_name is not None and _unpacked_here(transfer, zip_name, context.temporaries):
            return
        if zip_name is None and n_parts > 1:
            _fetch_in_parts(transfer, context, progress, n_parts)
        else:
            _fetch_in_one(transfer, context, progress, take_room)


def is_on_disk(transfer: Transfer) -> bool:
    """Whether the file of a transfer lies in the cache, whole."""
    return is_present(transfer.path, transfer.file.n_bytes)


def _fetch_in_one(
    transfer: Transfer, context: TransferContext, progress: TransferProgress, take_room: TakeRoom
) -> None:
    store, attempts = context.access.budgeted(transfer, progress)
    # Another object is looked at, so its refusals are not this one's.
    check = partial(
        context.watch.check, transfer.key, store=context.access.paced(transfer.key.remote, transfer.account)
    )
    download = _Download(transfer, Retrying(store, attempts), progress, context.bulk_gate, take_room, check)
    attempts.repeat(lambda: _receive(download, context.temporaries))


def _fetch_in_parts(transfer: Transfer, context: TransferContext, progress: TransferProgress, n_parts: int) -> None:
    """Place an uncompressed file over up to `n_parts` connections at once; a part that has come stays."""
    store, attempts = context.access.budgeted(transfer, progress)
    check = partial(
        context.watch.check, transfer.key, store=context.access.paced(transfer.key.remote, transfer.account)
    )
    n_bytes = transfer.file.n_bytes
    parts = Parts(n_bytes, transfer.shown)
    with context.temporaries.begin(transfer.key.local, transfer.key.name, n_bytes=n_bytes) as raw:

        def fetch(begin: int, end: int, version: str | None) -> Part:
            part = store.get_range(transfer.key.name, begin, end, version=version)
            if version is None:
                check(part.facts)
            check_size(transfer, part.facts.n_bytes, n_bytes, transfer.key.name)
            raw.write_at(begin, part.data)
            progress.n_bytes += len(part.data)
            return part

        def attempt() -> None:
            attempts.began()
            parts.fetch_missing(fetch, context.connections, n_parts)
            try:
                for _chunk in _checked(transfer, raw.read_back()):
                    pass
            except TransferDamagedError:
                parts.forget()
                raise

        attempts.repeat(attempt)
        raw.place(checked=transfer.file.checked)


@dataclass(frozen=True, slots=True)
class _Download:
    """The source of the bytes, and what hears of them."""

    transfer: Transfer
    store: Store
    progress: TransferProgress
    bulk_gate: BulkGate
    take_room: TakeRoom
    check: Callable[[ObjectFacts], None]
    """Raises if the object that comes is of another version of the remote."""


def _receive(download: _Download, temporaries: Temporaries) -> None:
    """Receive the file over the network, once, and place it."""
    transfer = download.transfer
    file, config, local = transfer.file, transfer.config, transfer.key.local
    if file.name == INDEX_NAME and config.has_index:
        _receive_index(download, temporaries)
        return
    if file.zip_name is None:
        with temporaries.begin(local, file.name, n_bytes=file.n_bytes) as raw:
            for chunk in _checked(transfer, _body(download, file.name, file.n_bytes)):
                raw.write(chunk)
            if not config.has_index:
                _claim_folder(transfer, None)
                raw.mark(mark_of(_origin_of(transfer), file.name))
            raw.place(checked=file.checked)
        return
    with contextlib.ExitStack() as stack:
        chunks = _checked(transfer, _body(download, file.zip_name, file.zip_bytes))
        kept = None
        if config.keep_zip:
            kept = stack.enter_context(temporaries.begin(local, file.zip_name, n_bytes=file.zip_bytes))
            chunks = _copied(chunks, kept)
        _unpack(transfer, chunks, temporaries)
        if kept is not None:
            kept.place()


def _receive_index(download: _Download, temporaries: Temporaries) -> None:
    """Receive an index, and place it if it is one and if the folder holds no files of another."""
    transfer = download.transfer
    found: list[ObjectFacts] = []
    with temporaries.begin(transfer.key.local, INDEX_NAME, n_bytes=transfer.file.n_bytes) as raw:
        chunks = _body(replace(download, check=found.append), INDEX_NAME, transfer.file.n_bytes)
        for chunk in _checked(transfer, chunks):
            raw.write(chunk)
        content = b"".join(raw.read_back())
        is_hashed = outline_of(content, where=transfer.shown).is_hashed
        version, modified_s = found[0].version, found[0].modified_s
        index = IndexVersion(digest_of(content), len(content), version, modified_s, is_hashed)
        _claim_folder(transfer, index)
        raw.place()


def _origin_of(transfer: Transfer) -> CopyOrigin:
    remote = transfer.key.remote
    return origin_of(str(remote), remote.shown)


def _claim_folder(transfer: Transfer, index: IndexVersion | None) -> None:
    """Note in the cache folder of what it is a copy. Raises CacheTakenError if it is one of something else."""
    remote, local = transfer.key.remote, transfer.key.local
    ours = replace(_origin_of(transfer), index=index)
    holder = claim(local, ours)
    if not holder.admits(ours):
        other = f"a copy of {holder.remote}" if holder.digest != ours.digest else f"an older copy of {remote.shown}"
        raise CacheTakenError(f"{local} holds {other}, not one of {remote.shown} as it is now")


def _unpacked_here(transfer: Transfer, zip_name: str, temporaries: Temporaries) -> bool:
    """Make the raw file from a compressed one in the cache (another job's, or the predecessor's). Whether it worked."""
    local = transfer.key.local
    if not is_present(os.path.join(local, zip_name), transfer.file.zip_bytes):
        return False
    try:
        _unpack(transfer, _checked(transfer, FolderStore(local).get(zip_name).chunks), temporaries)
    except (TransferDamagedError, ObjectMissingError):  # cut, flipped or just deleted: the same as absent
        return False
    return True


def _unpack(transfer: Transfer, chunks: Iterator[bytes | memoryview], temporaries: Temporaries) -> None:
    file, shown = transfer.file, f"{transfer.key.remote.shown}/{transfer.file.zip_name}"
    if file.compression is None:
        raise StorageError(f"{shown}: the index names a compressed file, but no compression")
    pieces = cast(Iterator[bytes], chunks)  # any buffer will do
    try:
        with temporaries.begin(transfer.key.local, file.name, n_bytes=file.n_bytes) as raw:
            for chunk in decompress_stream(file.compression, pieces, n_bytes=file.n_bytes):
                raw.write(chunk)
            for _ in chunks:  # the hash covers what a decompressor leaves unread
                pass
            if file.n_bytes not in (-1, raw.n_bytes):
                raise TransferDamagedError(
                    f"{shown} decompresses to {raw.n_bytes} bytes; the index states {file.n_bytes}"
                )
            raw.place(checked=file.checked)
    except FormatError as error:
        raise TransferDamagedError(f"{shown} does not decompress: {error}") from error


def _body(download: _Download, name: str, n_bytes: int) -> Iterator[bytes | memoryview]:
    """The bytes of an object: as many as the index states, or an error. Yields to urgent ranges."""
    transfer, progress = download.transfer, download.progress
    content = download.store.get(name)
    facts, n_got, yielded_s = content.facts, 0, 0.0
    download.check(facts)
    check_size(transfer, facts.n_bytes, n_bytes, name)
    if n_bytes < 0:
        download.take_room(facts.n_bytes)
    shown = f"{transfer.key.remote.shown}/{name}"
    for chunk in content.chunks:
        n_got += len(chunk)
        progress.n_bytes += len(chunk)
        yield chunk
        yielded_s = download.bulk_gate.yield_to_urgent(yielded_s)
        if not progress.is_wanted:
            raise AbandonedError(f"{shown}: nobody wants it any more")
    if n_got != facts.n_bytes:
        raise TransferDamagedError(f"{shown}: {n_got} bytes came; the store promised {facts.n_bytes}")


def check_size(transfer: Transfer, found: int, expected: int, name: str) -> None:
    """Raise TransferDamagedError if the object `name` has another size than the index states (-1: it states none)."""
    if expected not in (-1, found):
        raise TransferDamagedError(
            f"{transfer.key.remote.shown}/{name} has {found} bytes in the store; the index states {expected}; were "
            "shards and index written by one run?"
        )


def _checked(transfer: Transfer, chunks: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes, and at their end an error if their hash is not the one of the index."""
    file = transfer.file
    if file.hash_name is None or file.hash_hex is None:
        yield from chunks
        return
    digest = hasher(file.hash_name)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != file.hash_hex:
        raise TransferDamagedError(
            f"{transfer.key.remote.shown}/{file.zip_name or file.name}: {file.hash_name} is {digest.hexdigest()}; "
            f"the index states {file.hash_hex}: bytes were changed on the way or in the store"
        )


def _copied(chunks: Iterator[bytes | memoryview], copy: Temporary) -> Iterator[bytes | memoryview]:
    for chunk in chunks:
        copy.write(chunk)
        yield chunk


def _is_source(transfer: Transfer) -> bool:
    """Whether the cache folder is the source itself, which nobody may write."""
    remote, local = transfer.key.remote, transfer.key.local
    return isinstance(remote, Folder) and is_same_folder(remote.path, local)


def _absent_in_source(transfer: Transfer) -> StorageError:
    path, local = transfer.path, transfer.key.local
    try:
        n_bytes = os.stat(path).st_size
    except OSError:
        return ObjectMissingError(f"{path} does not exist, and {local} is the source itself")
    return TransferDamagedError(
        f"{path} has {n_bytes} bytes and the index states {transfer.file.n_bytes}; {local} is the source itself, "
        "so the file must be mended there"
    )
