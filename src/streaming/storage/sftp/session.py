"""SFTP, version 3, as a client needs it: requests over one channel, many of them under way when bytes move.

Written out here because paramiko's own SFTP client reads ahead from threads that outlive a dropped reader, and whose
errors nobody sees. From paramiko come the connection and the channel. A session is used by one thread at a time; after
an error other than `SftpRefusedError` it is of no further use.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from paramiko import Channel

NO_SUCH_FILE: Final = 2
PERMISSION_DENIED: Final = 3
OP_UNSUPPORTED: Final = 8

_BLOCK_BYTES: Final = 32768  # what every server takes in one request
_N_UNDER_WAY: Final = 128  # requests; 4 MiB hide a round trip of 40 ms at 100 MB/s
_PACKET_BYTES: Final = 1 << 20  # of an answer, at most; a server's are far smaller

_INIT, _VERSION, _OPEN, _CLOSE, _READ, _WRITE, _LSTAT, _FSTAT, _SETSTAT = 1, 2, 3, 4, 5, 6, 7, 8, 9
_OPENDIR, _READDIR, _REMOVE, _MKDIR, _STAT, _RENAME, _EXTENDED = 11, 12, 13, 14, 17, 18, 200
_STATUS, _HANDLE, _DATA, _NAME, _ATTRS = 101, 102, 103, 104, 105
_OK, _EOF = 0, 1
_HAS_SIZE, _HAS_OWNER, _HAS_MODE, _HAS_TIMES, _HAS_MORE = 1, 2, 4, 8, 1 << 31
_FOR_READING, _FOR_A_NEW_FILE = 0x01, 0x02 | 0x08 | 0x20
_POSIX_RENAME: Final = b"posix-rename@openssh.com"


class SftpRefusedError(Exception):
    """The server did not do what was asked, and says so with a code; the session goes on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"status {code}")
        self.code = code


class SftpBrokenError(Exception):
    """The connection ended, or what came is not SFTP."""


@dataclass(frozen=True, slots=True)
class SftpAttributes:
    """What a server says of a file; -1 where it says nothing."""

    n_bytes: int = -1
    mode: int = -1
    accessed_s: int = -1
    modified_s: int = -1


class SftpSession:
    """Requests and answers over one channel, which is this object's."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._received = bytearray()
        self._early: dict[int, tuple[int, _Fields]] = {}  # answers to requests that nobody has asked for yet
        self._unwanted = set[int]()  # requests whose answers are still to come
        self._forgotten: list[bytes] = []
        self._ids = itertools.count(1)
        channel.sendall(struct.pack(">IBI", 5, _INIT, 3))
        kind, fields = self._receive()
        if kind != _VERSION or fields.number() < 3:
            raise SftpBrokenError("the server does not speak SFTP version 3")
        self._extensions = set[bytes]()
        while fields.has_more():
            self._extensions.add(fields.text())
            fields.text()

    def open_to_read(self, path: str) -> bytes:
        """A handle of the file."""
        while self._forgotten:
            self.close_handle(self._forgotten.pop())
        return self._handle(_OPEN, _text(path), struct.pack(">II", _FOR_READING, 0))

    def open_new(self, path: str) -> bytes:
        """A handle of a file that did not exist until now."""
        return self._handle(_OPEN, _text(path), struct.pack(">II", _FOR_A_NEW_FILE, 0))

    def close_handle(self, handle: bytes) -> None:
        """Done with it."""
        self._done(self._send(_CLOSE, _text(handle)))

    def forget_handle(self, handle: bytes) -> None:
        """Done with it, from where nothing may be sent (a finalizer): it is closed before the next one is opened."""
        self._forgotten.append(handle)

    def stat(self, path: str) -> SftpAttributes:
        """Of what is there, links followed."""
        return self._attributes(self._send(_STAT, _text(path)))

    def stat_handle(self, handle: bytes) -> SftpAttributes:
        """Of the open file."""
        return self._attributes(self._send(_FSTAT, _text(handle)))

    def set_modified(self, path: str, attributes: SftpAttributes, modified_s: int) -> None:
        """Give the file this time of its last change."""
        times = struct.pack(">III", _HAS_TIMES, attributes.accessed_s, modified_s)
        self._done(self._send(_SETSTAT, _text(path), times))

    def remove(self, path: str) -> None:
        """Delete the file."""
        self._done(self._send(_REMOVE, _text(path)))

    def make_folder(self, path: str) -> None:
        """With the mode that the server gives."""
        self._done(self._send(_MKDIR, _text(path), struct.pack(">I", 0)))

    def replace(self, path: str, target: str) -> None:
        """Rename the file; what was at `target` goes, in the same instant where the server can."""
        if _POSIX_RENAME in self._extensions:
            self._done(self._send(_EXTENDED, _text(_POSIX_RENAME), _text(path), _text(target)))
            return
        try:
            self._done(self._send(_RENAME, _text(path), _text(target)))
        except SftpRefusedError:  # plain RENAME does not replace
            self.remove(target)
            self._done(self._send(_RENAME, _text(path), _text(target)))

    def folder(self, path: str) -> list[tuple[str, SftpAttributes]]:
        """What lies in it, links not followed."""
        handle, found = self._handle(_OPENDIR, _text(path)), list[tuple[str, SftpAttributes]]()
        while True:
            kind, fields = self._answer(self._send(_READDIR, _text(handle)))
            if kind == _STATUS:
                fields.check(end_is_fine=True)
                break
            for _ in range(fields.expected(kind, _NAME).number()):
                name = fields.text().decode(errors="surrogateescape")
                fields.text()  # the same as `ls -l` shows it
                found.append((name, fields.attributes()))
        self.close_handle(handle)
        return [(name, attributes) for name, attributes in found if name not in (".", "..")]

    def read(self, handle: bytes, begin: int, end: int) -> Generator[bytes]:
        """The bytes from `begin` on, in order, up to `end` or to where the file ends by now.

        Requests are under way ahead of what was taken: who stops in the middle makes the next one wait for answers.
        """
        asked, at = deque[tuple[int, int, int]](), begin
        try:
            while asked or at < end:
                while at < end and len(asked) < _N_UNDER_WAY:
                    n_bytes = min(_BLOCK_BYTES, end - at)
                    asked.append((self._ask(handle, at, n_bytes), at, n_bytes))
                    at += n_bytes
                number, place, n_bytes = asked.popleft()
                kind, fields = self._answer(number)
                if kind == _STATUS:
                    fields.check(end_is_fine=True)
                    return
                data = fields.expected(kind, _DATA).text()
                if len(data) < n_bytes:  # servers may give less than was asked for
                    rest = n_bytes - len(data)
                    asked.appendleft((self._ask(handle, place + len(data), rest), place + len(data), rest))
                yield data
        finally:
            self._unwanted.update(number for number, _, _ in asked)

    def write(self, handle: bytes, file: BinaryIO, moved: Callable[[int], None] | None) -> int:
        """All of `file`, into the open one; how many bytes that were."""
        under_way, n_bytes = deque[int](), 0
        try:
            while block := file.read(_BLOCK_BYTES):
                if len(under_way) == _N_UNDER_WAY:
                    self._done(under_way.popleft())
                under_way.append(self._send(_WRITE, _text(handle), struct.pack(">Q", n_bytes), _text(block)))
                n_bytes += len(block)
                if moved is not None:
                    moved(n_bytes)
            while under_way:
                self._done(under_way.popleft())
        finally:
            self._unwanted.update(under_way)
        return n_bytes

    def _ask(self, handle: bytes, begin: int, n_bytes: int) -> int:
        return self._send(_READ, _text(handle), struct.pack(">QI", begin, n_bytes))

    def _handle(self, kind: int, *fields: bytes) -> bytes:
        answer, found = self._answer(self._send(kind, *fields))
        return found.expected(answer, _HANDLE).text()

    def _attributes(self, number: int) -> SftpAttributes:
        kind, fields = self._answer(number)
        return fields.expected(kind, _ATTRS).attributes()

    def _done(self, number: int) -> None:
        kind, fields = self._answer(number)
        if kind != _STATUS:
            raise SftpBrokenError(f"the server answered with a packet of type {kind} where a status belongs")
        fields.check()

    def _send(self, kind: int, *fields: bytes) -> int:
        number = next(self._ids) & 0xFFFFFFFF
        body = b"".join(fields)
        self._channel.sendall(struct.pack(">IBI", len(body) + 5, kind, number) + body)
        return number

    def _answer(self, number: int) -> tuple[int, _Fields]:
        while number not in self._early:
            kind, fields = self._receive()
            came = fields.number()
            if came in self._unwanted:
                self._unwanted.remove(came)
            else:
                self._early[came] = (kind, fields)
        return self._early.pop(number)

    def _receive(self) -> tuple[int, _Fields]:
        n_bytes = int.from_bytes(self._take(4), "big")
        if not 1 <= n_bytes <= _PACKET_BYTES:
            raise SftpBrokenError(f"the server sent a packet of {n_bytes} bytes; is something printed at log-in?")
        packet = self._take(n_bytes)
        return packet[0], _Fields(packet, 1)

    def _take(self, n_bytes: int) -> bytes:
        while len(self._received) < n_bytes:
            came = self._channel.recv(1 << 18)
            if not came:
                raise SftpBrokenError("the server ended the connection")
            self._received += came
        taken = bytes(self._received[:n_bytes])
        del self._received[:n_bytes]
        return taken


class _Fields:
    """The fields of one packet, read in order."""

    def __init__(self, packet: bytes, at: int) -> None:
        self._packet, self._at = packet, at

    def has_more(self) -> bool:
        return self._at < len(self._packet)

    def number(self, layout: str = ">I") -> int:
        try:
            (value,) = struct.unpack_from(layout, self._packet, self._at)
        except struct.error as error:
            raise SftpBrokenError("the server sent a packet that ends too early") from error
        self._at += struct.calcsize(layout)
        return int(value)

    def text(self) -> bytes:
        n_bytes = self.number()
        text = self._packet[self._at : self._at + n_bytes]
        if len(text) != n_bytes:
            raise SftpBrokenError("the server sent a packet that ends too early")
        self._at += n_bytes
        return text

    def attributes(self) -> SftpAttributes:
        flags, size, mode, accessed_s, modified_s = self.number(), -1, -1, -1, -1
        if flags & _HAS_SIZE:
            size = self.number(">Q")
        if flags & _HAS_OWNER:
            self.number(">Q")
        if flags & _HAS_MODE:
            mode = self.number()
        if flags & _HAS_TIMES:
            accessed_s, modified_s = self.number(), self.number()
        for _ in range(self.number() * 2 if flags & _HAS_MORE else 0):
            self.text()
        return SftpAttributes(size, mode, accessed_s, modified_s)

    def check(self, *, end_is_fine: bool = False) -> None:
        """SftpRefusedError if this status is none of success."""
        code = self.number()
        if code != _OK and not (end_is_fine and code == _EOF):
            text = self.text().decode(errors="replace") if self.has_more() else ""
            raise SftpRefusedError(code, text)

    def expected(self, kind: int, wanted: int) -> _Fields:
        """These fields, if they are of the wanted kind; the server's refusal if they are a status."""
        if kind == _STATUS:
            self.check()
        if kind != wanted:
            raise SftpBrokenError(f"the server answered with a packet of type {kind}, not {wanted}")
        return self


def _text(text: str | bytes) -> bytes:
    encoded = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return struct.pack(">I", len(encoded)) + encoded
