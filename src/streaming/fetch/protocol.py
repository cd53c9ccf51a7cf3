"""What a client and the fetcher say to each other.

One request, one answer, each a frame: two lengths, a JSON head, bytes. Every request may be sent again: all truth is on
disk, and a repeated request joins the work that the first one began. What takes long is answered "pending" after a
second, with a token that changes as the work moves on, and the client asks again.
"""

from __future__ import annotations

import enum
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, get_args

from streaming import errors
from streaming._version import __version__
from streaming.errors import FetchError, IndexFormatError, StreamingError

PROTOCOL: Final = 4
VERSION: Final = __version__
SLICE_S: Final = 1.0  # how long the fetcher thinks before it answers "pending"
MAX_OBJECT_BYTES: Final = 1 << 30  # of an object that travels in an answer

_LENGTHS: Final = struct.Struct("<II")
_MAX_HEAD_BYTES: Final = 1 << 28


# --- what is wanted


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What the fetcher must know of one stream."""

    remote: str  # URL or folder, joined with the split, no slash at the end
    local: str  # absolute cache folder, joined with the split
    download_retry: int = 2  # attempts per file as seen on the wire; with 0 or less the first download fails
    download_timeout: float = 60.0  # seconds without progress
    keep_zip: bool = False
    root: str = ""  # the cache's root, above the split; "": the same as `local`
    options: str = field(default="{}", repr=False)  # storage_options as JSON; may hold secrets, so it is never shown
    has_index: bool = True  # False: files that no index lists, each by its name
    purse: str = ""  # under this name the user's function gives credentials; "": there is no such function


@dataclass(frozen=True, slots=True)
class FileNeed:
    """One file wanted in the cache, in raw form. Names are relative to the stream's folder."""

    stream: int  # place in the client's list of streams
    name: str
    n_bytes: int  # size that the index states, -1 if nobody knows (index.json, files without an index)
    zip_name: str | None = None
    zip_bytes: int = -1
    compression: str | None = None
    hash_name: str | None = None  # of the file as transferred: compressed if there is such a form; None: unchecked
    hash_hex: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.zip_name is not None:
            _check_name(self.zip_name)


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes `begin` to below `end` of a file in raw form, without the rest of it.

    `keep`: they are the file's offset table (`begin` is 0), which the fetcher also places beside the file.
    """

    need: FileNeed
    begin: int
    end: int
    keep: bool = False

    def __post_init__(self) -> None:
        n_bytes = self.need.n_bytes if self.need.n_bytes >= 0 else self.end
        if not 0 <= self.begin < self.end <= n_bytes or (self.keep and self.begin):
            raise FetchError(f"{self.need.name} has {n_bytes} bytes; bytes {self.begin} to {self.end} were asked for")


class Reason(enum.Enum):
    """Why bytes are wanted without their file."""

    RANDOM = "random"  # somebody reads here and there
    AHEAD = "ahead"  # the file will not be there in time
    FEW = "few"  # so little of it is needed that it is not worth fetching
    NO_ROOM = "no_room"  # the file cannot be placed


def _check_name(name: str) -> None:
    if not name or name[0] == "/" or "\\" in name or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise IndexFormatError(
            f"{name!r} is not a name below the folder of a dataset; what names it is damaged or hostile"
        )


# --- requests


@dataclass(frozen=True, slots=True)
class Hello:
    """First on each connection: who asks, and the streams that later requests mean by number."""

    protocol: int
    version: str
    job: str
    streams: tuple[StreamConfig, ...]
    cache_limit: int = -1  # bytes below the roots of all streams, -1: as many as there is room for
    openers: Mapping[str, str] = field(default_factory=dict)  # of stores that the user registered: scheme → name


@dataclass(frozen=True, slots=True)
class Announce:
    """What this reader needs next, in order of first use, and what it holds open; replaces its last list.

    Answered with the purses that are to be filled soon.

    Under a limit the list names what is on disk too: what is needed last is deleted first, and never what is held.
    """

    reader: str
    needs: tuple[FileNeed, ...]
    held: tuple[FileNeed, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Answered when the file is there, or cannot come."""

    need: FileNeed


@dataclass(frozen=True, slots=True)
class GiveCredentials:
    """What the user's function returned, as JSON, and until when it holds (seconds since 1970; None: for ever)."""

    purse: str
    options: str = field(repr=False)
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class ReadRanges:
    """Bytes of files that are not on disk, answered one after the other; the value says how many each span got.

    -1: none, its file is there or must be waited for. `due_s`: in how many seconds they are needed; below 0 if they
    were before now. `demand`: given only while this store gives clearly more than so many bytes a second; 0: anyway.
    """

    ticket: str
    reason: str
    due_s: float
    demand: float
    spans: tuple[Span, ...]
    is_patient: bool = True  # False: an answer at once, "pending" most likely


@dataclass(frozen=True, slots=True)
class Put:
    """Upload a file of this machine. `ticket` names the errand, so that asking again does not begin it again."""

    ticket: str
    remote: str
    path: str
    name: str
    attempts: int
    options: str = field(default="{}", repr=False)


@dataclass(frozen=True, slots=True)
class Check:
    """Whether the target of a writer is there."""

    ticket: str
    remote: str
    options: str = field(default="{}", repr=False)


@dataclass(frozen=True, slots=True)
class ReadObject:
    """A small object, answered with its bytes."""

    ticket: str
    remote: str
    name: str
    attempts: int
    timeout_s: float
    options: str = field(default="{}", repr=False)


@dataclass(frozen=True, slots=True)
class ListObjects:
    """The names of all objects below a folder of the remote, answered sorted."""

    ticket: str
    remote: str
    prefix: str
    options: str = field(default="{}", repr=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the fetcher is doing, in numbers."""


Request = Hello | Announce | Wait | GiveCredentials | ReadRanges | Put | Check | ReadObject | ListObjects | Progress
Errand = Put | Check | ReadObject | ListObjects


# --- answers


@dataclass(frozen=True, slots=True)
class Done:
    """It is so; with what was asked for, if anything."""

    value: Any = None  # JSON
    payload: bytes | bytearray = b""


@dataclass(frozen=True, slots=True)
class Pending:
    """Not yet: ask again. The token differs from the last one if anything moved."""

    token: str


@dataclass(frozen=True, slots=True)
class Failed:
    """An error of our own kinds, to be raised where it was asked."""

    error: StreamingError


Answer = Done | Pending | Failed


# --- as bytes

_OPERATIONS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Request)}
_config_row: Final = attrgetter(*(field.name for field in fields(StreamConfig)))
_need_row: Final = attrgetter(*(field.name for field in fields(FileNeed)))


def send_request(peer: socket.socket, request: Request) -> None:
    """Send one request."""
    send_frame(peer, [type(request).__name__, *(_to_json(getattr(request, f.name)) for f in fields(request))])


def receive_request(peer: socket.socket) -> Request:
    """The next request of this peer; FetchError for what is none, ConnectionError if it has gone."""
    head, _ = receive_frame(peer)
    try:
        operation, *values = head
        if operation == "Announce":
            reader, rows, held = values
            return Announce(reader, tuple(FileNeed(*row) for row in rows), tuple(FileNeed(*row) for row in held))
        if operation == "Wait":
            return Wait(FileNeed(*values[0]))
        if operation == "ReadRanges":
            ticket, reason, due_s, demand, rows, is_patient = values
            spans = tuple(Span(FileNeed(*row[0]), *row[1:]) for row in rows)
            return ReadRanges(ticket, Reason(reason).value, due_s, demand, spans, is_patient)
        if operation == "Hello":  # of any protocol: the first three never change their places
            protocol, version, job = values[:3]
            if protocol != PROTOCOL:
                return Hello(protocol, version, job, ())
            return Hello(protocol, version, job, tuple(StreamConfig(*row) for row in values[3]), *values[4:])
        request: Request = _OPERATIONS[operation](*values)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, StreamingError):
            raise
        operation = head[0] if head else head  # the rest may hold secrets
        raise FetchError(f"the fetcher does not understand this request: {str(operation)[:100]}") from error
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
    """The answer to the last request."""
    head, payload = receive_frame(peer)
    kind, *values = head
    if kind == "done":
        return Done(values[0], payload)
    if kind == "pending":
        return Pending(values[0])
    return Failed(_error(*values))


def send_frame(peer: socket.socket, head: object, payload: bytes | bytearray = b"") -> None:
    """Send one head and its bytes."""
    encoded = json.dumps(head, separators=(",", ":")).encode()
    peer.sendall(_LENGTHS.pack(len(encoded), len(payload)) + encoded)
    if payload:
        peer.sendall(payload)


def receive_frame(peer: socket.socket) -> tuple[list[Any], bytearray]:
    """One head and its bytes; ConnectionError if the peer has gone or sends no frames."""
    n_head, n_payload = _LENGTHS.unpack(_exactly(peer, _LENGTHS.size))
    if n_head > _MAX_HEAD_BYTES or n_payload > MAX_OBJECT_BYTES:
        raise ConnectionAbortedError("the peer does not speak our protocol")
    try:
        head = json.loads(_exactly(peer, n_head))
    except ValueError as error:
        raise ConnectionAbortedError("the peer does not speak our protocol") from error
    return head, _exactly(peer, n_payload)


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


def _to_json(value: object) -> object:
    if isinstance(value, FileNeed):
        return _need_row(value)
    if isinstance(value, Span):
        return [_need_row(value.need), value.begin, value.end, value.keep]
    if isinstance(value, StreamConfig):
        return _config_row(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    return value


def _error(kind_name: str, message: str) -> StreamingError:
    """The error as it was raised there: same kind, same words."""
    kind = getattr(errors, kind_name, None)
    if not (isinstance(kind, type) and issubclass(kind, StreamingError)):
        return FetchError(message)
    error: StreamingError = kind.__new__(kind, message)  # not by constructor: some take other arguments
    error.args = (message,)
    return error
