"""SFTP with servers other than OpenSSH's: everything the protocol allows works, and violations are errors."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest

from streaming.storage.sftp.session import SftpBrokenError, SftpRefusedError, SftpSession

CONTENT = bytes(range(256)) * 1000


class Server:
    """The other end of a channel, with configurable behaviour."""

    def __init__(self, *, at_most: int = 1 << 20, reverses: bool = False, greeting: bytes | None = None) -> None:
        self._at_most, self._reverses = at_most, reverses
        self._asked = bytearray()
        self._answers: list[bytes] = []
        self._greeting = greeting if greeting is not None else packet(2, struct.pack(">I", 3))
        self.refuses: dict[int, int] = {}  # kind of request → code

    def get_name(self) -> str:
        return "double"

    def send(self, data: bytes) -> int:
        self._asked += data
        while len(self._asked) >= 4:
            n_bytes = int.from_bytes(self._asked[:4], "big")
            if len(self._asked) < 4 + n_bytes:
                break
            request = bytes(self._asked[4 : 4 + n_bytes])
            del self._asked[: 4 + n_bytes]
            self._answers.append(self._answered(request[0], request[1:]))
        return len(data)

    def recv(self, _: int) -> bytes:
        if not self._answers:
            return b""
        return self._answers.pop(-1 if self._reverses else 0)

    def _answered(self, kind: int, fields: bytes) -> bytes:
        if kind == 1:
            return self._greeting
        number = fields[:4]
        if kind in self.refuses:
            return packet(101, number + struct.pack(">I", self.refuses[kind]) + text(b"no") + text(b"en"))
        if kind == 3:
            return packet(102, number + text(b"handle"))
        if kind == 5:
            offset, length = struct.unpack(">QI", fields[-12:])
            data = CONTENT[offset : offset + min(length, self._at_most)]
            return packet(103, number + text(data)) if data else packet(101, number + struct.pack(">I", 1))
        if kind == 17:
            extended = struct.pack(">IQIIIII", 1 | 2 | 4 | 8 | 1 << 31, 5, 1, 2, 0o100644, 7, 8)
            return packet(105, number + extended + struct.pack(">I", 1) + text(b"name") + text(b"value"))
        return packet(101, number + struct.pack(">I", 0) + text(b"") + text(b""))


def packet(kind: int, fields: bytes) -> bytes:
    return struct.pack(">IB", len(fields) + 1, kind) + fields


def text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def session(server: Any) -> SftpSession:
    return SftpSession(server)


@pytest.mark.parametrize("at_most", [1 << 20, 20_000, 777])
@pytest.mark.parametrize("reverses", [False, True])
def test_bytes_come_in_order_whatever_the_server_sends(at_most: int, reverses: bool) -> None:
    """Pieces may be smaller than requested, and answers may come in reverse order."""
    ours = session(Server(at_most=at_most, reverses=reverses))
    handle = ours.open_to_read("/a")
    for begin, end in ((0, len(CONTENT)), (5, 5), (100_000, 200_001), (len(CONTENT) - 3, len(CONTENT) + 90_000)):
        assert b"".join(ours.read(handle, begin, end)) == CONTENT[begin:end]


def test_a_read_that_stops_early_leaves_the_session_usable() -> None:
    """Unwanted answers are dropped when they arrive."""
    server = Server()
    ours = session(server)
    handle = ours.open_to_read("/a")
    blocks = ours.read(handle, 0, len(CONTENT))
    assert next(blocks) == CONTENT[:32768]
    blocks.close()
    assert b"".join(ours.read(handle, 10, 20)) == CONTENT[10:20]
    assert dict(ours._expecting) == {}  # type: ignore[attr-defined]


def test_all_optional_attributes_are_parsed() -> None:
    """Owners, and unknown extensions, are skipped."""
    found = session(Server()).stat("/a")
    assert (found.st_size, found.st_mode, found.st_atime, found.st_mtime) == (5, 0o100644, 7, 8)


def test_a_refusal_leaves_the_session_usable() -> None:
    """The error has the server's code and text."""
    server = Server()
    ours = session(server)
    server.refuses[17] = 3
    with pytest.raises(SftpRefusedError, match="no") as caught:
        ours.stat("/a")
    assert caught.value.code == 3
    assert ours.open_to_read("/a") == b"handle"


@pytest.mark.parametrize("kind", [6, 4])
@pytest.mark.parametrize("n_blocks", [1, 300])
def test_a_refused_write_is_an_error(kind: int, n_blocks: int) -> None:
    """Whether one of many writes under way is refused, or the close, where some servers report a quota."""
    server = Server()
    ours = session(server)
    handle = ours.open_new("/a")
    server.refuses[kind] = 4
    with pytest.raises(SftpRefusedError, match="no"):
        ours.write(handle, io.BytesIO(bytes(n_blocks * 32768)), None)
    server.refuses = {}
    assert b"".join(ours.read(handle, 10, 20)) == CONTENT[10:20]


@pytest.mark.parametrize(
    "greeting",
    [
        b"",  # hangs up
        b"Welcome to this machine!\n",  # something is printed at log-in
        packet(2, b"\0"),  # ends too early
        packet(2, struct.pack(">I", 2)),  # another version
        packet(103, struct.pack(">I", 3)),  # another kind
    ],
)
def test_anything_but_sftp_is_a_broken_session(greeting: bytes) -> None:
    """It never means a wrong answer, an endless wait or a built-in error."""
    with pytest.raises(SftpBrokenError):
        session(Server(greeting=greeting))
