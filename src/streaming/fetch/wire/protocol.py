"""The messages between a client and the fetcher.

A request gets one answer; each is a frame: two lengths, a JSON head, and bytes. The rules:

1. Every request may be sent again. All truth is on disk, and a repeated request joins the work that the first began.
2. Work that takes longer than `SLICE_S` is answered by Pending, with a token that changes as the work moves on. The
   client then asks again.
3. A connection belongs to one thread and asks one thing at a time. A Wait that was answered by Pending subscribes the
   connection to the file: until it is answered, asks for anything else, ends, or has not asked again for a while.
4. After a Wait that was answered by Done, the next request of the connection says that the file is open: from then on
   the file may be evicted.
5. The readers of a job have names: `START` and `INDEXES` for the rank process, `<rank>.<worker>` for the workers.
"""

from __future__ import annotations

import contextlib
import enum
import json
import select
import socket
import struct
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from streaming import errors
from streaming._version import __version__
from streaming.errors import FetchError, IndexFormatError, StreamingError
from streaming.storage.url import Bucket, Folder

PROTOCOL: Final = 7
VERSION: Final = __version__
SLICE_S: Final = 1.0
"""Seconds that the fetcher works on a request before it answers Pending."""
MAX_OBJECT_BYTES: Final = 1 << 30
"""The largest object, or batch of ranges, that travels in an answer."""

START: Final = "start"
"""The reader that announces the first shards of an epoch before any worker reads it."""
INDEXES: Final = "index"
"""The reader that announces the indexes of all streams."""

_LENGTHS: Final = struct.Struct("<II")
_MAX_HEAD_BYTES: Final = 1 << 28

M = TypeVar("M")


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A value that travels as a JSON array of its fields."""


class _Request(_Message, frozen=True, tag=True):
    """A request: the array begins with the name of its class."""


# --- what is asked for


class StreamConfig(_Message, frozen=True):
    """What the fetcher must know of one stream."""

    remote: Folder | Bucket
    """The folder of the index, joined with the split."""
    local: str
    """The cache folder, absolute, joined with the split."""
    download_retry: int = 2
    """Attempts for each file, counted on the wire; with 0 or less the first download fails."""
    download_timeout: float = 60.0
    """Seconds without progress."""
    keep_zip: bool = False
    root: str = ""
    """The cache's root, above the split; "" stands for `local`."""
    options: str = "{}"
    """`storage_options` as JSON. It may hold secrets, so it is never shown."""
    has_index: bool = True
    """False for files that no index lists, each fetched by its name."""
    credentials_key: str = ""
    """The name under which the user's function gives credentials; "" where there is no such function."""

    def __repr__(self) -> str:
        return f"StreamConfig({self.remote.shown!r}, {self.local!r}, …)"


class FileRequest(_Message, frozen=True):
    """One file wanted in the cache, in raw form. Names are relative to the stream's folder."""

    stream: int
    """The place in the client's list of streams."""
    name: str
    n_bytes: int
    """The size that the index states; -1 if it is unknown, as for `index.json` and files without an index."""
    zip_name: str | None = None
    zip_bytes: int = -1
    compression: str | None = None
    hash_name: str | None = None
    """The hash of the file as transferred (compressed if there is such a form); None leaves it unchecked."""
    hash_hex: str | None = None

    @property
    def checked(self) -> str | None:
        """What is noted with the file when its hash was found to be right; None if it has none."""
        return None if self.hash_name is None else f"{self.hash_name}:{self.hash_hex}"

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.zip_name is not None:
            _check_name(self.zip_name)


class Span(_Message, frozen=True):
    """The bytes `begin` to below `end` of a file in raw form, without the rest of it.

    With `keep` they are the file's offset table (`begin` is 0), which the fetcher also places beside the file.
    """

    file: FileRequest
    begin: int
    end: int
    keep: bool = False

    def __post_init__(self) -> None:
        n_bytes = self.file.n_bytes if self.file.n_bytes >= 0 else self.end
        if not 0 <= self.begin < self.end <= n_bytes or (self.keep and self.begin):
            raise FetchError(f"{self.file.name} has {n_bytes} bytes; bytes {self.begin} to {self.end} were asked for")


class Reason(enum.Enum):
    """Why bytes are wanted without their file."""

    RANDOM = "random"
    """Random access."""
    AHEAD = "ahead"
    """The file will not be on disk in time."""
    FEW = "few"
    """So little of the file is needed that it is not worth fetching."""
    NO_ROOM = "no_room"
    """The cache has no room for the file."""


class RangeAsk(_Message, frozen=True):
    """What a reader says of the samples that it wants by range. `decide/ranges.py` grants or refuses them.

    A reader counts its own samples of an epoch, from where it began: the first is number 0.
    """

    reason: Reason
    due_s: float = 0.0
    """Seconds until the samples are needed; negative if that moment has passed."""
    n_samples: int = 0
    """Samples whose shards are not on disk."""
    n_steps: int = 0
    """Random access: how many rows this thread has asked for in sequence, up to this one."""
    first: int = 0
    """Epochs: the number of the first sample of the segment to which the samples belong."""
    stop: int = 0
    """Epochs: the number after its last sample."""
    n_free: int = 0
    """Epochs: the samples of the reader's first batches."""
    n_late: int = 0
    """Epochs: samples after these that have come by range within the budget for late shards."""
    training_bytes_per_s: float | None = None
    """Bytes of samples that training on this machine takes in a second; None if that is not known (yet)."""


def _check_name(name: str) -> None:
    if not name or name[0] == "/" or "\\" in name or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise IndexFormatError(
            f"{name!r} is not a name below the folder of a dataset; what names it is damaged or hostile"
        )


# --- requests


class Hello(_Request, frozen=True):
    """First on each connection: the client, and the streams that later requests name by number.

    Its answer gives `protocol`, `version`, `instance` and `pid` of the fetcher, and the `rules` by which it decides.
    """

    protocol: int
    version: str
    job: str
    streams: tuple[StreamConfig, ...] = ()
    cache_limit: int = -1
    """Bytes below the roots of all streams; -1 for no limit."""
    openers: dict[str, str] = {}
    """Stores that the user registered: scheme to name."""


class Announce(_Request, frozen=True):
    """The files that a reader needs next, in order of first use, and those that it holds open. Replaces its last list.

    Under a limit the list names files that are on disk too: the one needed last is evicted first, and never one that
    is held. The answer names the credentials that will be needed soon.
    """

    reader: str
    files: tuple[FileRequest, ...]
    held: tuple[FileRequest, ...] = ()


class Wait(_Request, frozen=True):
    """Answered when the file is on disk, or cannot come."""

    file: FileRequest


class GiveCredentials(_Request, frozen=True):
    """The options that the user's function returned, as JSON, and their end in seconds since 1970 (None: no end)."""

    credentials_key: str
    options: str
    expires_s: float | None

    def __repr__(self) -> str:
        return f"GiveCredentials({self.credentials_key!r}, …)"


class ReadRanges(_Request, frozen=True):
    """Bytes of files that are not on disk.

    The answer's bytes are those of all granted spans, one after the other. Its value has `sizes`, the number of bytes
    for each span or -1 where the file is on disk or must be waited for; and `is_late`, whether the grant counts
    against the budget for late shards.
    """

    ticket: str
    ask: RangeAsk
    spans: tuple[Span, ...]
    is_patient: bool = True
    """False asks for an answer at once, most likely Pending."""


class Put(_Request, frozen=True):
    """Upload a file of this machine. `ticket` names the work, so that asking again does not begin it again.

    What may pass is tried again in `attempts` at least, and until `patience_s` have passed since the first failure.
    """

    ticket: str
    remote: Folder | Bucket
    path: str
    name: str
    attempts: int
    options: str = "{}"
    patience_s: float = 0.0


class Check(_Request, frozen=True):
    """Whether the target of a writer can be reached."""

    ticket: str
    remote: Folder | Bucket
    options: str = "{}"


class ReadObject(_Request, frozen=True):
    """A small object; the answer has its bytes."""

    ticket: str
    remote: Folder | Bucket
    name: str
    attempts: int
    timeout_s: float
    options: str = "{}"
    credentials_key: str = ""


class Head(_Request, frozen=True):
    """What the stores say of these objects, each a name in the folder of a stream.

    The answer's value has an item for each: `[n_bytes, version, modified_s]`, or `[kind, text]` of an error.
    """

    ticket: str
    objects: tuple[tuple[int, str], ...]


class ListObjects(_Request, frozen=True):
    """The names of all objects below a folder of the remote, sorted."""

    ticket: str
    remote: Folder | Bucket
    prefix: str
    options: str = "{}"


class AskStatus(_Request, frozen=True):
    """What the fetcher is doing, in numbers."""


StoreRequest: TypeAlias = Put | Check | ReadObject | ListObjects
"""Work on a store that concerns no file of the cache."""
Request: TypeAlias = Hello | Announce | Wait | GiveCredentials | ReadRanges | Head | StoreRequest | AskStatus


# --- answers


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out; with its result, if it has any."""

    value: Any = None
    """A JSON value."""
    payload: bytes | bytearray = b""


@dataclass(frozen=True, slots=True)
class Pending:
    """Not yet: ask again. The token differs from the last one if anything moved."""

    token: str


@dataclass(frozen=True, slots=True)
class Failed:
    """An error of our own kinds, to be raised where the request was made."""

    error: StreamingError


Answer: TypeAlias = Done | Pending | Failed


# --- frames


def send_request(peer: socket.socket, request: Request) -> None:
    """Send one request."""
    send_frame(peer, msgspec.to_builtins(request))


def receive_request(peer: socket.socket) -> Request:
    """Receive the next request. Raises FetchError for anything else, ConnectionError if the peer has gone."""
    head, _ = receive_frame(peer)
    try:
        # Of any protocol: the first three fields of a greeting never change their places.
        if head[0] == Hello.__name__ and head[1] != PROTOCOL:
            return Hello(*head[1:4])
        request: Request = msgspec.convert(head, Request)
    except (msgspec.ValidationError, IndexError, KeyError, TypeError) as error:
        if isinstance(error.__cause__, StreamingError):  # a name or span that is refused
            raise error.__cause__ from None
        operation = head[0] if head else head  # the rest may hold secrets
        raise FetchError(f"the fetcher does not understand this request: {str(operation)[:100]}") from None
    return request


def send_answer(peer: socket.socket, answer: Answer) -> None:
    """Send one answer."""
    if isinstance(answer, Done):
        send_frame(peer, ["done", answer.value], answer.payload)
    elif isinstance(answer, Pending):
        send_frame(peer, ["pending", answer.token])
    else:
        send_frame(peer, ["failed", type(answer.error).__name__, str(answer.error)])


def receive_answer(peer: socket.socket) -> Answer:
    """Receive the answer to the last request."""
    head, payload = receive_frame(peer)
    kind, *values = head
    if kind == "done":
        return Done(values[0], payload)
    if kind == "pending":
        return Pending(values[0])
    return Failed(error_of(*values))


def send_frame(peer: socket.socket, head: object, payload: bytes | bytearray = b"") -> None:
    """Send one head and its bytes."""
    encoded = json.dumps(head, separators=(",", ":")).encode()  # escapes the surrogates of paths that are not UTF-8
    peer.sendall(_LENGTHS.pack(len(encoded), len(payload)) + encoded)
    if payload:
        peer.sendall(payload)


def receive_frame(peer: socket.socket) -> tuple[list[Any], bytearray]:
    """Receive one head and its bytes. Raises ConnectionError if the peer has gone or sends no frames."""
    n_head, n_payload = _LENGTHS.unpack(_exactly(peer, _LENGTHS.size))
    if n_head > _MAX_HEAD_BYTES or n_payload > MAX_OBJECT_BYTES:
        raise ConnectionAbortedError("the peer does not speak our protocol")
    try:
        head = json.loads(_exactly(peer, n_head))
    except ValueError as error:
        raise ConnectionAbortedError("the peer does not speak our protocol") from error
    return head, _exactly(peer, n_payload)


class Connection:
    """One socket to the fetcher, of one thread. Closed at the latest when dropped."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._close = weakref.finalize(self, peer.close)
        self.instance = ""
        """The life of the fetcher at the other end."""
        self.facts: Mapping[str, Any] = {}
        """What it said of itself; see `Hello`."""

    @property
    def closed(self) -> bool:
        """Whether this process has let go of it."""
        return not self._close.alive

    def close(self) -> None:
        """Drop this process's copy of the socket."""
        self._close()

    def end(self) -> None:
        """End it for every thread and process that has it; a thread that waits for an answer is woken."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
        self._close()

    def exchange(self, request: Request) -> Answer:
        """Send one request and receive its answer. Whatever interrupts that closes the connection."""
        try:
            send_request(self._peer, request)
            return receive_answer(self._peer)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
                raise ConnectionAbortedError(str(error)) from error  # closed by another thread
            raise

    def is_alive(self) -> bool:
        """Whether the other end is still there, by looking without waiting."""
        if self.closed:
            return False
        poll = select.poll()
        poll.register(self._peer, select.POLLIN)
        return not poll.poll(0)  # nothing is due, so what can be read is the end


def _exactly(peer: socket.socket, n_bytes: int) -> bytearray:
    buffer = bytearray(n_bytes)
    with memoryview(buffer) as view:
        n_got = 0
        while n_got < n_bytes:
            n_new = peer.recv_into(view[n_got:])
            if not n_new:
                raise ConnectionResetError("the peer has closed the connection")
            n_got += n_new
    return buffer


def error_of(kind_name: str, message: str) -> StreamingError:
    """The error as it was raised there: same kind, same words."""
    kind = getattr(errors, kind_name, None)
    if not (isinstance(kind, type) and issubclass(kind, StreamingError)):
        return FetchError(message)
    error: StreamingError = kind.__new__(kind, message)  # not by the constructor: some take other arguments
    error.args = (message,)
    return error
