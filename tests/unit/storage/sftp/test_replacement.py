"""An upload over SFTP never loses the old object, whatever the server refuses and whenever it hangs up."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paramiko import Message

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreUnreachableError,
)
from streaming.storage.common.pool import Pool
from streaming.storage.settings import StoreSettings
from streaming.storage.sftp.connection import SftpConnection, sftp_login
from streaming.storage.sftp.session import SftpSession
from streaming.storage.sftp.store import SftpStore
from streaming.storage.url import Bucket

OLD, NEW = b"the old object", b"the new object"
TARGET = "/data/shard"
POSIX_RENAME = b"posix-rename@openssh.com"
NO_SUCH_FILE, PERMISSION_DENIED, FAILURE, OP_UNSUPPORTED, FILE_ALREADY_EXISTS = 2, 3, 4, 8, 11


class FileServer:
    """The other end of a channel: files in memory, and renames that are refused or cut off by their number."""

    def __init__(self, target: str, *, has_extension: bool, refused: tuple[int, ...] = (), code: int = FAILURE) -> None:
        self.files: dict[str, bytearray] = {TARGET: bytearray(OLD)} if target == "a file" else {}
        self.folders = {"/data", *([TARGET] if target == "a folder" else [])}
        self.removed: list[str] = []
        self.hangs_up_before = self.hangs_up_after = 0  # the number of a rename
        self._has_extension, self._refused, self._code = has_extension, refused, code
        self._renames = itertools.count(1)
        self._asked, self._answers = bytearray(), list[bytes]()
        self._is_gone = False

    def get_name(self) -> str:
        return "double"

    def send(self, data: bytes) -> int:
        if self._is_gone:
            raise OSError("Socket is closed")
        self._asked += data
        while len(self._asked) >= 4 and len(self._asked) >= 4 + (n_bytes := int.from_bytes(self._asked[:4], "big")):
            request = bytes(self._asked[4 : 4 + n_bytes])
            del self._asked[: 4 + n_bytes]
            answer = self._answer(request[0], Message(request[1:]))
            if not self._is_gone:
                self._answers.append(answer)
        return len(data)

    def recv(self, n_bytes: int) -> bytes:
        return self._answers.pop(0) if self._answers else b""

    def _answer(self, kind: int, fields: Message) -> bytes:
        if kind == 1:
            extension = _text(POSIX_RENAME) + _text(b"1") if self._has_extension else b""
            return _packet(2, struct.pack(">I", 3) + extension)
        number = struct.pack(">I", fields.get_int())
        if kind == 200:
            assert fields.get_string() == POSIX_RENAME
            return self._renamed(number, fields, replaces=True)
        if kind == 18:
            return self._renamed(number, fields, replaces=False)
        path = fields.get_text()
        if kind == 3:
            self.files[path] = bytearray()
            return _packet(102, number + _text(path.encode()))
        if kind == 6:
            offset, data = fields.get_int64(), fields.get_string()
            self.files[path][offset : offset + len(data)] = data
        if kind in (7, 17):
            if path not in self.files and path not in self.folders:
                return _status(number, NO_SUCH_FILE, "No such file")
            mode, size = (0o40755, 0) if path in self.folders else (0o100644, len(self.files[path]))
            return _packet(105, number + struct.pack(">IQIII", 1 | 4 | 8, size, mode, 7, 7))
        if kind == 13:
            self.removed.append(path)
            if self.files.pop(path, None) is None:
                return _status(number, NO_SUCH_FILE, "No such file")
        return _status(number, 0, "")

    def _renamed(self, number: bytes, fields: Message, *, replaces: bool) -> bytes:
        source, target, nth = fields.get_text(), fields.get_text(), next(self._renames)
        if nth == self.hangs_up_before:
            self._is_gone = True
            return b""
        if nth in self._refused:
            return _status(number, self._code, f"rename {nth} is refused")
        if target in self.folders or (target in self.files and not replaces):
            return _status(number, FAILURE, "the target exists")
        if source not in self.files:
            return _status(number, NO_SUCH_FILE, "No such file")
        self.files[target] = self.files.pop(source)
        self._is_gone = nth == self.hangs_up_after
        return _status(number, 0, "")


def _packet(kind: int, fields: bytes) -> bytes:
    return struct.pack(">IB", len(fields) + 1, kind) + fields


def _text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _status(number: bytes, code: int, text: str) -> bytes:
    return _packet(101, number + struct.pack(">I", code) + _text(text.encode()) + _text(b"en"))


def store_on(channel: Any, folder: str = "/data") -> SftpStore:
    """Return a store that has this channel as its only connection."""
    login = sftp_login(Bucket("sftp", "me@host", ""), StoreSettings({}, {"HOME": "/nowhere"}, timeout_s=1.0))
    pool: Pool[SftpConnection] = Pool(
        lambda: SftpConnection(None, SftpSession(channel)),  # type: ignore[arg-type]
        limit=1,
        place="sftp://host",
        queue_timeout_s=1.0,
        close=lambda _: None,
    )
    return SftpStore(login, folder, pool)


def put(server: FileServer, folder: Path) -> StorageError | None:
    """Upload the new object; return the error if there was one."""
    (folder / "file").write_bytes(NEW)
    try:
        store_on(server).put("shard", str(folder / "file"))
    except StorageError as error:
        return error
    return None


def check_no_loss(server: FileServer, target: str, error: StorageError | None) -> None:
    """Check that the new object is in place, or the old one, or that the error names the old one's place."""
    assert TARGET not in server.removed
    left = {path: bytes(content) for path, content in server.files.items()}
    if error is None:
        assert left == {TARGET: NEW}
    elif target == "a file" and TARGET not in left:
        named = re.search(r"(?:kept|found) as '([^']+)'", str(error))
        assert named is not None
        assert left[named[1]] == OLD
    else:
        assert left.get(TARGET) == (OLD if target == "a file" else None)


@pytest.mark.parametrize("has_extension", [True, False])
@pytest.mark.parametrize("target", ["nothing", "a file", "a folder"])
@pytest.mark.parametrize("code", [NO_SUCH_FILE, PERMISSION_DENIED, FAILURE, OP_UNSUPPORTED, FILE_ALREADY_EXISTS])
@pytest.mark.parametrize("refused", [(), (1,), (2,), (3,), (1, 2), (1, 3), (3, 4), (1, 3, 4), (1, 2, 3, 4)])
def test_a_refused_rename_loses_nothing_and_is_named(
    tmp_path: Path, has_extension: bool, target: str, code: int, refused: tuple[int, ...]
) -> None:
    """Any renames may be refused for any reason, over nothing, a file or a folder, with the extension or without."""
    server = FileServer(target, has_extension=has_extension, refused=refused, code=code)
    error = put(server, tmp_path)
    check_no_loss(server, target, error)
    hidden = [path for path in server.files if path != TARGET]
    assert all(repr(path) in str(error) for path in hidden)
    if error is not None and not hidden:
        kind = {NO_SUCH_FILE: ObjectMissingError, PERMISSION_DENIED: ObjectForbiddenError}.get(code, StorageError)
        assert type(error) is kind or "the target exists" in str(error)
        assert kind is not StorageError or re.search(r"rename \d is refused|the target exists", str(error))


@pytest.mark.parametrize("target", ["nothing", "a file"])
@pytest.mark.parametrize("code", [NO_SUCH_FILE, PERMISSION_DENIED, OP_UNSUPPORTED])
def test_only_a_target_that_exists_is_moved_away(tmp_path: Path, target: str, code: int) -> None:
    """A refusal for another reason is raised after the first rename."""
    server = FileServer(target, has_extension=False, refused=(1,), code=code)
    assert put(server, tmp_path) is not None
    assert next(server._renames) == 2
    assert server.files == ({TARGET: OLD} if target == "a file" else {})


@pytest.mark.parametrize("has_extension", [True, False])
@pytest.mark.parametrize("target", ["nothing", "a file"])
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_server_that_hangs_up_loses_nothing(
    tmp_path: Path, has_extension: bool, target: str, is_done: bool, nth: int
) -> None:
    """It hangs up before a rename or after; the error is worth another attempt, which succeeds."""
    server = FileServer(target, has_extension=has_extension, refused=(3,) if nth == 4 else ())
    if is_done:
        server.hangs_up_after = nth
    else:
        server.hangs_up_before = nth
    error = put(server, tmp_path)
    if bytes(server.files.get(TARGET, b"")) != NEW:
        check_no_loss(server, target, error)
    if server._is_gone:
        assert isinstance(error, StoreUnreachableError)
        server._is_gone = False
        assert put(server, tmp_path) is None
        assert server.files[TARGET] == NEW


class ServerProcess:
    """OpenSSH's SFTP server on two pipes, as a channel."""

    def __init__(self, *arguments: str) -> None:
        program = next(filter(os.path.exists, ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server")), "")
        if not (program := shutil.which("sftp-server") or program):
            assert "CI" not in os.environ
            pytest.skip("needs OpenSSH's sftp-server (Debian: openssh-sftp-server)")
        self._process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def get_name(self) -> str:
        return "pipes"

    def send(self, data: bytes) -> int:
        self._stdin.write(data)
        self._stdin.flush()
        return len(data)

    def recv(self, n_bytes: int) -> bytes:
        return os.read(self._stdout.fileno(), n_bytes)

    def close(self) -> None:
        self._stdin.close()
        self._process.wait(10)
        self._stdout.close()


@pytest.fixture(params=[[], ["-P", "posix-rename"]], ids=["with the extension", "without"])
def openssh(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    process = ServerProcess(*request.param)
    yield process
    process.close()


def test_openssh_replaces_with_its_extension_and_without(openssh: ServerProcess, tmp_path: Path) -> None:
    """Files and links to files are replaced, and no hidden file remains."""
    (tmp_path / "file").write_bytes(NEW)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "aim").write_bytes(OLD)
    (tmp_path / "data" / "link").symlink_to("aim")
    store = store_on(openssh, f"{tmp_path}/data")
    for name in ("new", "new", "aim", "link"):
        store.put(name, str(tmp_path / "file"))
        assert b"".join(store.get(name).chunks) == NEW
    assert sorted(os.listdir(tmp_path / "data")) == ["aim", "link", "new"]


def test_openssh_does_not_replace_a_folder(openssh: ServerProcess, tmp_path: Path) -> None:
    """The folder is neither moved nor emptied, and the upload is removed."""
    (tmp_path / "file").write_bytes(NEW)
    (tmp_path / "data" / "folder" / "below").mkdir(parents=True)
    with pytest.raises(StorageError, match="the server answered: Failure"):
        store_on(openssh, f"{tmp_path}/data").put("folder", str(tmp_path / "file"))
    assert [folders for _, folders, _ in os.walk(tmp_path / "data")] == [["folder"], ["below"], []]


def test_names_that_are_not_utf_8_are_listed(openssh: ServerProcess, tmp_path: Path) -> None:
    """They can be read under the names that the list gives."""
    name = b"\xff.bin"
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
        file.write(OLD)
    store = store_on(openssh, str(tmp_path))
    (facts,) = store.list()
    assert facts.name.encode(errors="surrogateescape") == name
    assert b"".join(store.get(facts.name).chunks) == OLD
