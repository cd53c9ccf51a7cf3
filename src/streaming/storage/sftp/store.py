"""`sftp://[user[:password]@]host[:port]/path` through paramiko (extra `sftp`).

The path is absolute on the server. A user or password that cannot stand in the URL is percent-encoded there, or goes
into `storage_options`. A host whose key is not among the known ones is refused. Each call borrows a connection from a
bounded pool; a broken one is dropped, and the next call makes another.
"""

from __future__ import annotations

import contextlib
import inspect
import stat
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

from paramiko import SFTPAttributes, SFTPError, SSHException

from streaming.errors import (
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.placement import is_temporary, temporary_beside
from streaming.storage.common.pool import Pool
from streaming.storage.common.transport import read_timeout_s
from streaming.storage.settings import StoreSettings
from streaming.storage.sftp.connection import SftpConnection, SftpLogin, connect, sftp_login
from streaming.storage.sftp.session import NO_SUCH_FILE, PERMISSION_DENIED, SftpRefusedError, SftpSession
from streaming.storage.store import Content, ObjectFacts, Part
from streaming.storage.translation import translating_errors
from streaming.storage.uploads import open_upload
from streaming.storage.url import Bucket

N_CONNECTIONS: Final = 16  # to one server: as many as the fetcher has transfers
_QUEUE_S: Final = 600.0  # at least this long a call waits for a connection that others have
_CHUNK_BYTES: Final = 1 << 20


def open_sftp(location: Bucket, settings: StoreSettings) -> SftpStore:
    """Open `sftp://`. Connects when first used."""
    login = sftp_login(location, settings)
    idle_timeout_s = settings.timeout_s if settings.for_uploads else read_timeout_s(settings.timeout_s)
    pool = Pool(
        lambda: connect(login, idle_timeout_s),
        limit=N_CONNECTIONS,
        place=str(login),
        queue_timeout_s=max(_QUEUE_S, settings.timeout_s),
        close=lambda connection: connection.client.close(),
        is_alive=SftpConnection.is_alive,
        harmless=(StorageError, SftpRefusedError),
    )
    return SftpStore(login, "/" + location.prefix, pool)


class SftpStore:
    """The files below a folder of an SFTP server."""

    def __init__(self, login: SftpLogin, folder: str, pool: Pool[SftpConnection]) -> None:
        self._login, self._folder, self._pool = login, folder, pool

    def get(self, name: str, *, offset: int = 0, version: str | None = None) -> Content:
        """See Store."""
        with self._translating_errors(name):
            connection = self._pool.take()
            with self._pool.settled_on_error(connection):
                handle, facts = self._opened(connection.session, name, version)
        # In no variable: what paramiko keeps of errors keeps this frame, and so would keep the chunks.
        return Content(
            facts,
            offset,
            _Chunks(connection, self._pool, handle, offset, facts.n_bytes, lambda: self._translating_errors(name)),
        )

    def get_range(self, name: str, begin: int, end: int, *, version: str | None = None) -> Part:
        """See Store."""
        with self._session(name) as session:
            handle, facts = self._opened(session, name, version)
            data = b"".join(session.read(handle, begin, end))
            session.close_handle(handle)
        if len(data) != end - begin:
            raise TransferDamagedError(
                f"{self._shown(name)} has {facts.n_bytes} bytes; bytes up to {end} were asked for: was it cut?"
            )
        return Part(facts, data)

    def put(self, name: str, path: str, *, moved: Callable[[int], None] | None = None) -> None:
        """See Store. Where the server has no atomic replacement, the old object is hidden for a moment."""
        target = self._path(name)
        temporary = temporary_beside(target)
        with open_upload(path, self._shown(name)) as file, self._session(name) as session:
            handle = self._new_file(session, target.rpartition("/")[0], temporary)
            try:
                n_bytes = session.write(handle, file, moved)
                self._make_newer(session, temporary, target, n_bytes)
                session.replace(temporary, target)
            except SftpRefusedError:
                with contextlib.suppress(SftpRefusedError):
                    session.remove(temporary)
                raise

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """See Store. Hidden temporaries of writers are not objects."""
        folders = [prefix]
        while folders:
            folder = folders.pop()
            with self._session(folder) as session:
                found = self._entries(session, folder)
            for name, attributes in found:
                if stat.S_ISDIR(_mode(attributes)):
                    folders.append(name)
                elif stat.S_ISREG(_mode(attributes)):
                    yield _facts(name, attributes)

    def head(self, name: str) -> ObjectFacts:
        """See Store."""
        with self._session(name) as session:
            return self._checked(name, session.stat(self._path(name)))

    def delete(self, name: str) -> None:
        """See Store."""
        with self._session(name) as session:
            try:
                session.remove(self._path(name))
            except SftpRefusedError as refusal:
                if refusal.code != NO_SUCH_FILE:
                    raise

    @contextlib.contextmanager
    def _session(self, name: str) -> Iterator[SftpSession]:
        """Borrow a session for a block about `name`."""
        with self._translating_errors(name), self._pool.borrowed() as connection:
            yield connection.session

    def _opened(self, session: SftpSession, name: str, version: str | None) -> tuple[bytes, ObjectFacts]:
        handle = session.open_to_read(self._path(name))
        try:
            facts = self._checked(name, session.stat_handle(handle))
            if version is not None and version != facts.version:
                raise TransferDamagedError(f"{self._shown(name)} changed while it was read; check who writes to it")
        except StorageError:
            session.close_handle(handle)
            raise
        return handle, facts

    def _checked(self, name: str, attributes: SFTPAttributes) -> ObjectFacts:
        if not stat.S_ISREG(_mode(attributes)):
            raise ObjectMissingError(f"{self._shown(name)} is no file; check the path")
        return _facts(name, attributes)

    def _new_file(self, session: SftpSession, folder: str, path: str) -> bytes:
        """Create a file for writing, and the folders above it if they are missing; return its handle."""
        try:
            return session.open_new(path)
        except SftpRefusedError as refusal:
            if refusal.code != NO_SUCH_FILE:
                raise
        parts = folder.split("/")
        for n in range(2, len(parts) + 1):
            with contextlib.suppress(SftpRefusedError):  # it exists; if not, the next line says what is wrong
                session.make_folder("/".join(parts[:n]))
        return session.open_new(path)

    def _make_newer(self, session: SftpSession, path: str, target: str, n_bytes: int) -> None:
        """Give the new file a version that differs from the old one's, though times have whole seconds here."""
        try:
            old = session.stat(target)
        except SftpRefusedError:
            return
        new = session.stat(path)
        old_s, new_s = old.st_mtime or 0, new.st_mtime or 0
        if old.st_size == n_bytes and old_s >= new_s:
            session.utime(path, (new.st_atime or new_s, old_s + 1))

    def _entries(self, session: SftpSession, folder: str) -> Sequence[tuple[str, SFTPAttributes]]:
        """The files and folders in `folder` under their names in the store. A link to a file counts as the file."""
        try:
            entries = session.entries(self._path(folder))
        except SftpRefusedError as refusal:
            if refusal.code == NO_SUCH_FILE:
                return []
            raise
        found = []
        for last, attributes in entries:
            if is_temporary(last):
                continue
            name = f"{folder}/{last}" if folder else last
            if stat.S_ISLNK(_mode(attributes)):
                with contextlib.suppress(SftpRefusedError):
                    aim = session.stat(self._path(name))
                    if stat.S_ISREG(_mode(aim)):  # links to folders are not followed: they may lead in circles
                        found.append((name, aim))
            else:
                found.append((name, attributes))
        return found

    def _path(self, name: str) -> str:
        return f"{self._folder.rstrip('/')}/{name}" if name else self._folder

    def _shown(self, name: str) -> str:
        return f"{self._login}{self._path(name)}"

    def _translating_errors(self, name: str) -> contextlib.AbstractContextManager[None]:
        return translating_errors(lambda error: self._translated(name, error))

    def _translated(self, name: str, error: Exception) -> StorageError | None:
        """Say what a refusal means, or a connection that broke."""
        shown = self._shown(name)
        if isinstance(error, SftpRefusedError):
            if error.code == NO_SUCH_FILE:
                return ObjectMissingError(f"{shown} does not exist; check the path")
            if error.code == PERMISSION_DENIED:
                return ObjectForbiddenError(
                    f"{shown}: the server refuses it to the user {self._login.user!r}; check its owner and mode"
                )
            return StorageError(f"{shown}: the server answered: {error}")
        if isinstance(error, SSHException | SFTPError | EOFError | OSError):
            return StoreUnreachableError(
                f"{shown}: the connection broke ({str(error) or type(error).__name__}); check the network and the "
                "server"
            )
        return None


class _Chunks(Iterator[bytes]):
    """A file's bytes in order. Holds the connection until the end; a reader that stops early costs the connection."""

    def __init__(
        self,
        connection: SftpConnection,
        pool: Pool[SftpConnection],
        handle: bytes,
        begin: int,
        end: int,
        translating: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._connection, self._pool, self._handle, self._translating = connection, pool, handle, translating
        self._blocks = connection.session.read(handle, begin, end)
        self._over = weakref.finalize(self, _settle, pool, connection, handle, self._blocks)
        self._over.atexit = False

    def __next__(self) -> bytes:
        if not self._over.alive:
            raise StopIteration
        blocks, n_bytes = list[bytes](), 0
        try:
            with self._translating():
                while n_bytes < _CHUNK_BYTES and (block := next(self._blocks, None)) is not None:
                    blocks.append(block)
                    n_bytes += len(block)
                if n_bytes < _CHUNK_BYTES:
                    self._connection.session.close_handle(self._handle)
        except BaseException:
            self._over.detach()
            self._pool.drop(self._connection)
            raise
        if n_bytes < _CHUNK_BYTES:
            self._over.detach()
            self._pool.give_back(self._connection)
        if not blocks:
            raise StopIteration
        return b"".join(blocks)


def _settle(pool: Pool[SftpConnection], connection: SftpConnection, handle: bytes, blocks: Generator[bytes]) -> None:
    """Give back the connection of a dropped `_Chunks` if nothing was requested on it; else close it."""
    if inspect.getgeneratorstate(blocks) == inspect.GEN_CREATED:
        connection.session.forget_handle(handle)
        pool.give_back(connection)
    else:
        pool.drop(connection)


def _mode(attributes: SFTPAttributes) -> int:
    return attributes.st_mode or 0


def _facts(name: str, attributes: SFTPAttributes) -> ObjectFacts:
    n_bytes = -1 if attributes.st_size is None else attributes.st_size
    return ObjectFacts(name, n_bytes, f"{attributes.st_mtime}-{n_bytes}", attributes.st_mtime)
