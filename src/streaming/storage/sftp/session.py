"""An SFTP session: paramiko's client, and what that lacks.

- paramiko reads ahead from a thread, which outlives a dropped reader and whose errors nobody sees; `read` here keeps
  requests under way without one.
- Its pipelined writes lose the server's refusals, and closing a file swallows them; `write` here reports both.
- Its file objects send from their finalizer, in whichever thread that runs; files here are plain handles.
- It drops the list of extensions, keeps two of the server's status codes, and cannot list a folder with a name that is
  not UTF-8.

A session is used by one thread at a time. After an error other than `SftpRefusedError` it is of no further use.
"""

from __future__ import annotations

import contextlib
import stat
from collections import deque
from collections.abc import Callable, Generator
from typing import BinaryIO, Final

from paramiko import Channel, Message, SFTPAttributes, SFTPClient, SFTPError, sftp

from streaming.placement import temporary_beside

NO_SUCH_FILE: Final = sftp.SFTP_NO_SUCH_FILE
PERMISSION_DENIED: Final = sftp.SFTP_PERMISSION_DENIED

_BLOCK_BYTES: Final = 32768  # every server takes this much in one request
_N_UNDER_WAY: Final = 128  # requests; 4 MiB hide a round trip of 40 ms at 100 MB/s
_PACKET_BYTES: Final = 1 << 20  # of an answer, at most; those of servers are far smaller

_NEW_FILE: Final = sftp.SFTP_FLAG_WRITE | sftp.SFTP_FLAG_CREATE | sftp.SFTP_FLAG_EXCL
_POSIX_RENAME: Final = b"posix-rename@openssh.com"
# Version 3 has no code for "the file exists". OpenSSH answers FAILURE; some servers send the code of later versions.
_MAYBE_EXISTS: Final = frozenset({sftp.SFTP_FAILURE, 11})


class SftpRefusedError(Exception):
    """The server refused a request, with a status code. The session goes on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"status {code}")
        self.code = code


class SftpBrokenError(SFTPError):
    """The connection ended, or what came is not SFTP."""


class SftpSession(SFTPClient):
    """Requests and answers over one channel, which this object owns. Paths are absolute."""

    # Methods of paramiko's client that its type stubs leave out.
    _request: Callable[..., tuple[int, Message]]
    _async_request: Callable[..., int]
    _read_response: Callable[[], object]
    _send_packet: Callable[[int, Message], None]

    def __init__(self, channel: Channel) -> None:
        """Greet the server. Raises SftpBrokenError."""
        self._extensions = set[bytes]()
        self._forgotten: list[bytes] = []
        self._received = bytearray()
        super().__init__(channel)

    def open_to_read(self, path: str) -> bytes:
        """Open a file for reading; return its handle."""
        while self._forgotten:
            self.close_handle(self._forgotten.pop())
        return self._open(path, sftp.SFTP_FLAG_READ)

    def open_new(self, path: str) -> bytes:
        """Create a file for writing; return its handle. Refused if the file exists."""
        return self._open(path, _NEW_FILE)

    def close_handle(self, handle: bytes) -> None:
        """Close the file."""
        self._request(sftp.CMD_CLOSE, handle)

    def forget_handle(self, handle: bytes) -> None:
        """Close the file before the next one is opened. Sends nothing now, so finalizers may call it."""
        self._forgotten.append(handle)

    def stat_handle(self, handle: bytes) -> SFTPAttributes:
        """Return the attributes of the open file."""
        return _attributes(_expected(sftp.CMD_ATTRS, *self._request(sftp.CMD_FSTAT, handle)))

    def read(self, handle: bytes, begin: int, end: int) -> Generator[bytes]:
        """Yield the bytes from `begin` to below `end` in order; ends early if the file does.

        Requests are under way ahead of the reader. If the reader stops early, their answers are dropped on arrival.
        """
        answers, asked, at = _Answers(), deque[tuple[int, int, int]](), begin
        while asked or at < end:
            while at < end and len(asked) < _N_UNDER_WAY:
                n_bytes = min(_BLOCK_BYTES, end - at)
                asked.append((self._request_block(answers, handle, at, n_bytes), at, n_bytes))
                at += n_bytes
            number, offset, n_bytes = asked.popleft()
            try:
                data = _data(_expected(sftp.CMD_DATA, *self._answer(answers, number)))
            except EOFError:
                return
            if len(data) < n_bytes:  # servers may give less than was asked for
                offset, n_bytes = offset + len(data), n_bytes - len(data)
                asked.appendleft((self._request_block(answers, handle, offset, n_bytes), offset, n_bytes))
            yield data

    def write(self, handle: bytes, file: BinaryIO, moved: Callable[[int], None] | None) -> int:
        """Write all of `file` to the handle and close the handle; return the number of bytes."""
        answers, under_way, n_bytes = _Answers(), deque[int](), 0
        try:
            while block := file.read(_BLOCK_BYTES):
                if len(under_way) == _N_UNDER_WAY:
                    self._answer(answers, under_way.popleft())
                under_way.append(self._async_request(answers, sftp.CMD_WRITE, handle, sftp.int64(n_bytes), block))
                n_bytes += len(block)
                if moved is not None:
                    moved(n_bytes)
            while under_way:
                self._answer(answers, under_way.popleft())
        except SftpRefusedError:
            with contextlib.suppress(SftpRefusedError):
                self.close_handle(handle)
            raise
        self.close_handle(handle)
        return n_bytes

    def make_folder(self, path: str) -> None:
        """Create a folder with the server's default mode; paramiko would ask for one that is open to everybody."""
        self._request(sftp.CMD_MKDIR, self._adjust_cwd(path), SFTPAttributes())

    def entries(self, path: str) -> list[tuple[str, SFTPAttributes]]:
        """Return the names in a folder with their attributes. Links are not followed."""
        handle = self._handle(sftp.CMD_OPENDIR, self._adjust_cwd(path))
        found = list[tuple[str, SFTPAttributes]]()
        with contextlib.suppress(EOFError):
            while True:
                fields = _expected(sftp.CMD_NAME, *self._request(sftp.CMD_READDIR, handle))
                for _ in range(fields.get_int()):
                    name = fields.get_string().decode(errors="surrogateescape")
                    fields.get_string()  # the line that `ls -l` would print
                    found.append((name, _attributes(fields)))
        self.close_handle(handle)
        return [(name, attributes) for name, attributes in found if name not in (".", "..")]

    def replace(self, path: str, target: str) -> None:
        """Rename a file over `target`, in one step where the server has OpenSSH's extension.

        Without it, RENAME refuses a target that exists. Then the old file is renamed first, and deleted once the new
        one is in place. If the server still refuses the new one, the old file gets its name back, or the error gives
        its new name. Any other refusal leaves the old file alone.
        """
        if _POSIX_RENAME in self._extensions:
            self.posix_rename(path, target)
            return
        try:
            self.rename(path, target)
        except SftpRefusedError as refusal:
            if refusal.code not in _MAYBE_EXISTS or not self._is_file(target):
                raise
            self._replace_in_steps(path, target)

    def _replace_in_steps(self, path: str, target: str) -> None:
        kept = temporary_beside(target)
        try:
            self.rename(target, kept)
            self._rename_or_restore(path, target, kept)
        except SftpRefusedError:
            raise
        except Exception as error:
            raise SftpBrokenError(f"{error}; the file that was there may be found as {kept!r}") from error
        with contextlib.suppress(SftpRefusedError):  # the new file is in place, and the old one is hidden
            self.remove(kept)

    def _rename_or_restore(self, path: str, target: str, kept: str) -> None:
        try:
            self.rename(path, target)
        except SftpRefusedError as refusal:
            try:
                self.rename(kept, target)
            except SftpRefusedError:
                text = f"{refusal}; the file that was there is kept as {kept!r}"
                raise SftpRefusedError(sftp.SFTP_FAILURE, text) from refusal
            raise

    def _is_file(self, path: str) -> bool:
        """Whether `path` is a file, or a link, which RENAME moves like a file."""
        try:
            mode = self.lstat(path).st_mode or 0
        except SftpRefusedError:
            return False
        return stat.S_ISREG(mode) or stat.S_ISLNK(mode)

    def _open(self, path: str, flags: int) -> bytes:
        return self._handle(sftp.CMD_OPEN, self._adjust_cwd(path), flags, SFTPAttributes())

    def _handle(self, kind: int, *fields: object) -> bytes:
        return _expected(sftp.CMD_HANDLE, *self._request(kind, *fields)).get_string()

    def _request_block(self, answers: _Answers, handle: bytes, offset: int, n_bytes: int) -> int:
        return self._async_request(answers, sftp.CMD_READ, handle, sftp.int64(offset), n_bytes)

    def _answer(self, answers: _Answers, number: int) -> tuple[int, Message]:
        """Wait for the answer to the request `number`. Raises SftpRefusedError, and EOFError at the end of a file."""
        while number not in answers:
            self._read_response()
        kind, fields = answers.pop(number)
        if kind == sftp.CMD_STATUS:
            self._convert_status(fields)
        return kind, fields

    # The methods below override those of paramiko's client.

    def _send_version(self) -> int:
        """Greet the server, and keep its list of extensions."""
        greeting = Message()
        greeting.add_int(3)
        self._send_packet(sftp.CMD_INIT, greeting)
        kind, packet = self._read_packet()
        fields = Message(packet)
        version = fields.get_int()
        if kind != sftp.CMD_VERSION or version < 3:
            raise SftpBrokenError("the server does not speak SFTP version 3")
        while fields.get_remainder():
            self._extensions.add(fields.get_string())
            fields.get_string()  # the extension's own data
        return version

    def _read_packet(self) -> tuple[int, bytes]:
        """Receive in large pieces and copy each packet once; paramiko's way takes a third more processor time."""
        self._fill(4)
        n_bytes = int.from_bytes(self._received[:4], "big")
        if not 1 <= n_bytes <= _PACKET_BYTES:
            raise SftpBrokenError(f"the server sent a packet of {n_bytes} bytes; is something printed at log-in?")
        self._fill(4 + n_bytes)
        with memoryview(self._received) as received:
            kind, packet = received[4], bytes(received[5 : 4 + n_bytes])
        del self._received[: 4 + n_bytes]
        return kind, packet

    def _fill(self, n_bytes: int) -> None:
        """Receive until the buffer holds this many bytes."""
        while len(self._received) < n_bytes:
            came = self.sock.recv(1 << 18)
            if not came:
                raise SftpBrokenError("the server ended the connection")
            self._received += came

    def _convert_status(self, fields: Message) -> None:
        """Raise refusals with their code; paramiko's errors for them look like a broken connection."""
        code, text = fields.get_int(), fields.get_string().decode(errors="replace")
        if code == sftp.SFTP_EOF:
            raise EOFError(text)
        if code != sftp.SFTP_OK:
            raise SftpRefusedError(code, text)

    def _adjust_cwd(self, path: str) -> bytes:
        """Encode a path, also one that `entries` gives for a name that is not UTF-8."""
        return path.encode(errors="surrogateescape")


class _Answers(dict[int, tuple[int, Message]]):
    """Answers to requests under way, by request number.

    paramiko's client refers to it weakly: answers that come after it is gone are dropped.
    """

    def _async_response(self, kind: int, fields: Message, number: int) -> None:
        self[number] = (kind, fields)


def _expected(wanted: int, kind: int, fields: Message) -> Message:
    if kind != wanted:
        raise SFTPError(f"the server answered with a packet of type {kind}, not {wanted}")
    return fields


def _attributes(fields: Message) -> SFTPAttributes:
    attributes: SFTPAttributes = SFTPAttributes._from_msg(fields)  # type: ignore[attr-defined]
    return attributes


def _data(fields: Message) -> bytes:
    """Return the content of a data packet. `Message.get_string` would pad a short packet with zeros."""
    n_bytes = fields.get_int()
    data = fields.get_remainder()
    if len(data) != n_bytes:
        raise SFTPError("the server sent a packet that ends too early")
    return data
