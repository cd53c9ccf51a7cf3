"""A double of Hadoop's file system, on loopback: one name node and one data node, with what a client needs.

It is written after the published protocol (Hadoop's .proto files), and was never compared with a cluster. It speaks RPC
version 9 without security, and block transfer version 28 with CRC-32 checksums, to an unmodified `hdfs-native`.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import socketserver
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from support.protobuf import (
    Fields,
    bytes_of,
    decoded,
    delimited,
    encoded,
    fixed,
    number_of,
    read_varint,
    split,
    text_of,
    unzigzag,
    zigzag,
)

_BLOCK_BYTES: Final = 4 << 20
_CHECKED_BYTES: Final = 512
_PACKET_BYTES: Final = 64 << 10
_NEGOTIATION: Final = -33
_CONTEXT: Final = -3
_SUCCESS, _ERROR = 0, 1
_READ_BLOCK, _WRITE_BLOCK = 81, 80
_CRC32: Final = 1


@dataclass
class File:
    """A file of the name node, whose blocks are on the data node."""

    file_id: int
    moment_ms: int
    blocks: list[int] = field(default_factory=list)
    is_open: bool = True


class HadoopError(Exception):
    """An error of the name node, by the name of a Java exception."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class HadoopDouble:
    """Both nodes, which run as long as a block."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.folders: set[str] = {"/"}
        self.blocks: dict[int, bytearray] = {}
        self.failures: list[tuple[str, HadoopError]] = []  # (name of a call, the error of its next use)
        self.cut_blocks_after = -1  # bytes: the data node dies while it is read
        self.lock = threading.RLock()
        self._ids = itertools.count(1000)
        self._moments = itertools.count(1_600_000_000_000)
        self._connections = set[socket.socket]()
        self.name_port = self.data_port = 0

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[HadoopDouble]:
        """Run an empty file system for the block."""
        double = cls()
        with double._listening(double._serve_names) as name_port, double._listening(double._serve_data) as data_port:
            double.name_port, double.data_port = name_port, data_port
            yield double

    @property
    def authority(self) -> str:
        """The host and port of its URLs."""
        return f"127.0.0.1:{self.name_port}"

    def content(self, path: str) -> bytes:
        """The content of a file."""
        return b"".join(bytes(self.blocks[block]) for block in self.files[path].blocks)

    @contextlib.contextmanager
    def _listening(self, serve: Callable[[socket.socket], None]) -> Iterator[int]:
        double = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                double._connections.add(self.request)
                with contextlib.suppress(OSError, EOFError):
                    serve(self.request)
                double._connections.discard(self.request)

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()
            for connection in list(self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()

    # --- the name node's RPC

    def _serve_names(self, connection: socket.socket) -> None:
        assert _taken(connection, 7)[:5] == b"hrpc\x09"
        while True:
            request = _taken(connection, struct.unpack(">I", _taken(connection, 4))[0])
            header, *rest = split(request)
            call_id = unzigzag(number_of(decoded(header), 3))
            if call_id == _NEGOTIATION:
                # "We have no security": state NEGOTIATE, one way to log in.
                auth = encoded((1, "SIMPLE"), (2, ""))
                connection.sendall(_response(call_id, _SUCCESS, encoded((2, 1), (4, auth))))
            elif call_id != _CONTEXT:
                connection.sendall(self._called(call_id, text_of(decoded(rest[0]), 1), decoded(rest[1])))

    def _called(self, call_id: int, method: str, request: Fields) -> bytes:
        try:
            with self.lock:
                for i, (name, failure) in enumerate(self.failures):
                    if name == method:
                        del self.failures[i]
                        raise failure
                answer: bytes = getattr(self, f"_rpc_{method}")(request)
            return _response(call_id, _SUCCESS, answer)
        except HadoopError as error:
            return _response(call_id, _ERROR, None, error)

    def _rpc_getServerDefaults(self, _: Fields) -> bytes:  # noqa: N802
        sizes = ((1, _BLOCK_BYTES), (2, _CHECKED_BYTES), (3, _PACKET_BYTES), (4, 1), (5, 4096), (8, _CRC32))
        return encoded((1, encoded(*sizes)))

    def _rpc_getFileInfo(self, request: Fields) -> bytes:  # noqa: N802
        path = _path(request)
        return encoded((1, self._status(path, b""))) if path in self.files or path in self.folders else b""

    def _rpc_getListing(self, request: Fields) -> bytes:  # noqa: N802
        path, after = _path(request), text_of(request, 2)
        if path in self.files:
            return encoded((1, encoded((1, self._status(path, b"")), (2, 0))))
        if path not in self.folders:
            raise _missing(path)
        top = path.rstrip("/")
        below = {each for each in (*self.files, *self.folders) if each != "/" and each.rpartition("/")[0] == top}
        names = sorted(each.rpartition("/")[2] for each in below)
        left = [name for name in names if name > after]
        page = left[:2]  # small, so that clients must follow pages
        statuses = [(1, self._status(f"{top}/{name}", name.encode())) for name in page]
        return encoded((1, encoded(*statuses, (2, len(left) - len(page)))))

    def _rpc_getBlockLocations(self, request: Fields) -> bytes:  # noqa: N802
        path = _path(request)
        if path not in self.files:
            raise _missing(path)
        blocks, offset = [], 0
        for block_id in self.files[path].blocks:
            blocks.append((2, self._located(block_id, offset)))
            offset += len(self.blocks[block_id])
        return encoded((1, encoded((1, offset), *blocks, (3, 0), (5, 1))))

    def _rpc_create(self, request: Fields) -> bytes:
        path, may_replace = _path(request), number_of(request, 4) & 2
        if path in self.folders:
            raise HadoopError("org.apache.hadoop.fs.FileAlreadyExistsException", f"{path} is a directory")
        if path in self.files and not may_replace:
            raise HadoopError("org.apache.hadoop.fs.FileAlreadyExistsException", f"{path} already exists")
        self._make_folders(path.rpartition("/")[0])
        self.files[path] = File(next(self._ids), next(self._moments))
        return encoded((1, self._status(path, b"")))

    def _rpc_addBlock(self, request: Fields) -> bytes:  # noqa: N802
        file, block_id = self.files[_path(request)], next(self._ids)
        offset = sum(len(self.blocks[block]) for block in file.blocks)
        self.blocks[block_id] = bytearray()
        file.blocks.append(block_id)
        return encoded((1, self._located(block_id, offset)))

    def _rpc_complete(self, request: Fields) -> bytes:
        file = self.files[_path(request)]
        file.is_open, file.moment_ms = False, next(self._moments)
        return encoded((1, 1))

    def _rpc_renewLease(self, _: Fields) -> bytes:  # noqa: N802
        return b""

    def _rpc_mkdirs(self, request: Fields) -> bytes:
        self._make_folders(_path(request))
        return encoded((1, 1))

    def _rpc_rename2(self, request: Fields) -> bytes:
        source, target = _path(request), text_of(request, 2)
        if source not in self.files:
            raise _missing(source)
        if target in self.folders or (target in self.files and not number_of(request, 3)):
            raise HadoopError("org.apache.hadoop.fs.FileAlreadyExistsException", f"rename destination {target} exists")
        self.files[target] = self.files.pop(source)
        return b""

    def _rpc_delete(self, request: Fields) -> bytes:
        return encoded((1, int(self.files.pop(_path(request), None) is not None)))

    def _make_folders(self, path: str) -> None:
        parts = path.split("/")
        self.folders |= {"/".join(parts[:n]) or "/" for n in range(1, len(parts) + 1)}

    def _status(self, path: str, name: bytes) -> bytes:
        file = self.files.get(path)
        kind, n_bytes, moment_ms, file_id = 1, 0, 1, 1
        if file is not None:
            n_bytes = sum(len(self.blocks[block]) for block in file.blocks)
            kind, moment_ms, file_id = 2, file.moment_ms, file.file_id
        mode = encoded((1, 0o644))
        about = ((1, kind), (2, name), (3, n_bytes), (4, mode), (5, "user"), (6, "group"), (7, moment_ms), (8, 0))
        return encoded(*about, (10, 1), (11, _BLOCK_BYTES), (13, file_id))

    def _located(self, block_id: int, offset: int) -> bytes:
        block = encoded((1, "pool"), (2, block_id), (3, 1), (4, len(self.blocks[block_id])))
        node = encoded((1, "127.0.0.1"), (2, "127.0.0.1"), (3, "node"), (4, self.data_port), (5, 1), (6, 1))
        token = encoded((1, b""), (2, b""), (3, ""), (4, ""))
        return encoded((1, block), (2, offset), (3, encoded((1, node))), (4, 0), (5, token), (7, 1), (8, "storage"))

    # --- the data node's transfers

    def _serve_data(self, connection: socket.socket) -> None:
        while True:
            version, operation = struct.unpack(">HB", _taken(connection, 3))
            assert version == 28
            request = decoded(_taken_message(connection))
            base = decoded(bytes_of(decoded(bytes_of(request, 1)), 1))
            block_id = number_of(decoded(bytes_of(base, 1)), 2)
            if operation == _READ_BLOCK:
                self._send_block(connection, block_id, number_of(request, 2), number_of(request, 3))
            else:
                assert operation == _WRITE_BLOCK
                self._receive_block(connection, block_id)

    def _send_block(self, connection: socket.socket, block_id: int, offset: int, length: int) -> None:
        block = bytes(self.blocks[block_id])
        begin, end = offset - offset % _CHECKED_BYTES, min(offset + length, len(block))
        end = min(-(-end // _CHECKED_BYTES) * _CHECKED_BYTES, len(block))
        checksum = encoded((1, _CRC32), (2, _CHECKED_BYTES))
        connection.sendall(delimited(encoded((1, _SUCCESS), (4, encoded((1, checksum), (2, begin))))))
        for number, at in enumerate(range(begin, end, _PACKET_BYTES)):
            data = block[at : min(at + _PACKET_BYTES, end)]
            if 0 <= self.cut_blocks_after < at:
                raise EOFError
            connection.sendall(_packet(at, number, data, is_last=False))
        connection.sendall(_packet(end, -(-(end - begin) // _PACKET_BYTES), b"", is_last=True))
        _taken_message(connection)  # what the client found of the checksums

    def _receive_block(self, connection: socket.socket, block_id: int) -> None:
        connection.sendall(delimited(encoded((1, _SUCCESS))))
        while True:
            n_bytes, n_header = struct.unpack(">IH", _taken(connection, 6))
            header = decoded(_taken(connection, n_header))
            n_data = number_of(header, 4)
            _taken(connection, n_bytes - 4 - n_data)  # checksums
            self.blocks[block_id] += _taken(connection, n_data)
            connection.sendall(delimited(encoded((1, zigzag(number_of(header, 2))), (2, _SUCCESS))))
            if number_of(header, 3):
                return


def _response(call_id: int, status: int, message: bytes | None, error: HadoopError | None = None) -> bytes:
    fields: list[tuple[int, int | str | bytes]] = [(1, call_id & 0xFFFFFFFF), (2, status), (3, 9)]
    if error is not None:
        fields += [(4, error.kind), (5, str(error)), (6, 1)]
    body = delimited(encoded(*fields)) + (delimited(message) if message is not None else b"")
    return struct.pack(">I", len(body)) + body


def _packet(offset: int, number: int, data: bytes, *, is_last: bool) -> bytes:
    header = fixed(1, "<q", offset) + fixed(2, "<q", number) + encoded((3, int(is_last))) + fixed(4, "<i", len(data))
    sums = b"".join(
        struct.pack(">I", zlib.crc32(data[at : at + _CHECKED_BYTES])) for at in range(0, len(data), _CHECKED_BYTES)
    )
    return struct.pack(">IH", 4 + len(sums) + len(data), len(header)) + header + sums + data


def _path(request: Fields) -> str:
    return text_of(request, 1).rstrip("/") or "/"


def _missing(path: str) -> HadoopError:
    return HadoopError("java.io.FileNotFoundException", f"File does not exist: {path}")


def _taken(connection: socket.socket, n_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < n_bytes:
        came = connection.recv(n_bytes - len(data))
        if not came:
            raise EOFError
        data += came
    return bytes(data)


def _taken_message(connection: socket.socket) -> bytes:
    return _taken(connection, read_varint(lambda n: _taken(connection, n)))
